"""Which matrices of a package are the experts of one layer: a tensor that is a stack, or one tensor for each expert."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from mxconv.package.tensor_record import TensorRecord

OF_AN_EXPERT = re.compile(r"(?P<experts>.+\.experts)\.(?P<number>\d+)\.(?P<matrix>.+)")


@dataclass(frozen=True)
class ExpertGroup:
    """Matrices of one shape and format, in the order of the experts.

    `name` is that of the tensor, or of each expert's with `*` in place of its number.
    """

    name: str
    members: tuple[tuple[TensorRecord, int | None], ...]  # a tensor, and which of its experts

    @property
    def records(self) -> list[TensorRecord]:
        """The tensors, once each."""
        return list({record.name: record for record, _ in self.members}.values())

    @property
    def num_planes(self) -> int:
        """Residual bits beyond eight of the expert that has most."""
        return max((each.residual_bits for record in self.records for each in record.all_segments), default=8) - 8

    @property
    def has_row_starts(self) -> bool:
        """Whether starts differ from row to row: by row shifts, or by tables of each expert's own."""
        tables = [each.starts for record in self.records for each in record.all_segments]
        return any(table != tables[0] or len(table) > 1 for table in tables)


def expert_groups(records: Iterable[TensorRecord]) -> tuple[list[ExpertGroup], list[TensorRecord]]:
    """The groups among quantized tensors, and the tensors that are in none."""
    groups: list[ExpertGroup] = []
    alone: list[TensorRecord] = []
    numbered: dict[str, dict[int, TensorRecord]] = {}
    for record in records:
        match = OF_AN_EXPERT.fullmatch(record.name)
        if (stack := record.stack) is not None:
            if record.carried is None or record.carried.part == "codes":
                groups.append(ExpertGroup(record.stem, tuple((record, each) for each in range(stack.num_experts))))
        elif match is not None:
            name = f"{match['experts']}.*.{match['matrix']}"
            numbered.setdefault(name, {})[int(match["number"])] = record
        else:
            alone.append(record)
    for name, found in numbered.items():
        kinds = {(tuple(record.shape), record.codec, record.dtype) for record in found.values()}
        if sorted(found) == list(range(len(found))) and len(kinds) == 1:
            groups.append(ExpertGroup(name, tuple((found[number], None) for number in range(len(found)))))
        else:
            alone += found.values()
    return groups, alone
