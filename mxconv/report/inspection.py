"""Inspect a checkpoint or package: the figures of every tensor, then by layer or kind, then of all.

with open_weights("stories260K-bf16") as weights:
    inspection = inspect_weights(weights, per="kind")
print(inspection.total.bsfp_draft_sqnr_db)
"""

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

from mxconv.errors import MxconvError
from mxconv.progress import Progress, silent
from mxconv.report.open_weights import OpenWeights, WeightTensor
from mxconv.report.weight_statistics import NUM_PASSES, Statistics, merge, tensor_statistics
from mxconv.workers import Advance, ByteCounter, Executor, Workers

Per = Literal["layer", "kind", "tensor"]
OUTSIDE_LAYERS = "outside layers"
MTP, OF_MTP = "MTP", re.compile(r"(?:^|\.)mtp(?:_layers)?\.")  # numbered from 0 again
LAYER = re.compile(r"(?:^|\.)(?:layers|blocks|h)\.(\d+)(?:\.|$)")


@dataclass(frozen=True)
class Inspection:
    """The figures of a checkpoint or package."""

    source: str
    kind: Literal["checkpoint", "package"]
    commit: str | None
    per: Per
    tensors: tuple[Statistics, ...]  # sorted by name
    groups: tuple[Statistics, ...]  # the tensors themselves where per is tensor
    total: Statistics
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "source_kind": self.kind,
            "commit": self.commit,
            "notes": list(self.notes),
            "per": self.per,
            "tensors": [tensor.to_json() for tensor in self.tensors],
            "groups": [] if self.per == "tensor" else [group.to_json() for group in self.groups],
            "total": self.total.to_json(),
        }


def inspect_weights(
    weights: OpenWeights,
    *,
    per: Per = "kind",
    tensor_glob: str = "*",
    progress: Progress = silent,
    num_threads: int = 1,
    executor: Executor | None = None,
) -> Inspection:
    """Read and count every tensor that matches; memory stays flat.

    Args:
        weights: open.
        per: what `groups` are.
        tensor_glob: which tensors to read.
        progress: told about every slice.
        num_threads: that read tensors side by side; what is found does not depend on it.
        executor: who reads them; threads if None.

    Raises:
        MxconvError: no tensor matches.
    """
    chosen = []
    for whole in weights.tensors:  # of a stack of experts all, or some by their own names: NAME[3]
        parts = [whole] if whole.matrices is None else whole.matrices()
        is_chosen = fnmatchcase(whole.name, tensor_glob)
        chosen += [tensor for tensor in parts if is_chosen or _names(tensor_glob, tensor.name)]
    if not chosen:
        raise MxconvError(
            f"{weights.source}: none of its {len(weights.tensors)} tensors matches --tensor {tensor_glob!r}; "
            f"at least one is required. Its names look like {weights.tensors[0].name!r}."
        )
    total = sum(2 * NUM_PASSES * tensor.num_weights for tensor in chosen)
    advance = ByteCounter("inspect", total, progress)
    workers = executor or Workers(num_threads)
    tensors = tuple(workers.map(CountTensor(weights, chosen), [tensor.name for tensor in chosen], advance))
    return Inspection(
        source=weights.source,
        kind=weights.kind,
        commit=weights.commit,
        per=per,
        tensors=tensors,
        groups=tensors if per == "tensor" else _groups(tensors, per),
        total=merge("total", tensors),
        notes=weights.notes,
    )


def _names(glob: str, name: str) -> bool:
    """Whether a pattern equals or matches a name; the name of an expert has brackets, as patterns may."""
    return name == glob or fnmatchcase(name, glob)


def layer_of(name: str) -> str:
    """The number after `layers.` (or `blocks.`, `h.`) in a tensor's name, unless it is of an MTP module."""
    if OF_MTP.search(name):
        return MTP
    found = LAYER.search(name)
    return found.group(1) if found else OUTSIDE_LAYERS


def kind_of(name: str) -> str:
    """The last module of a tensor's name: `model.layers.0.self_attn.q_proj.weight` is a `q_proj`."""
    modules, _, parameter = name.rpartition(".")
    return modules.rpartition(".")[2] or parameter


def _groups(tensors: tuple[Statistics, ...], per: Literal["layer", "kind"]) -> tuple[Statistics, ...]:
    members: dict[str, list[Statistics]] = {}
    for tensor in tensors:
        key = layer_of(tensor.name) if per == "layer" else kind_of(tensor.name)
        members.setdefault(key, []).append(tensor)

    def position(key: str) -> tuple[int, str]:
        return (int(key), "") if per == "layer" and key.isdecimal() else (2**63, key)

    return tuple(merge(key, members[key]) for key in sorted(members, key=position))


class CountTensor:
    """A task for any process: count the tensor of a name, or an expert of a stack, `NAME[3]`."""

    def __init__(self, weights: OpenWeights, tensors: Sequence[WeightTensor] = ()) -> None:
        """Keep the tensors of open weights.

        Args:
            weights: all.
            tensors: more that were looked up already, such as experts.
        """
        self._weights = weights
        self._tensors = {tensor.name: tensor for tensor in (*weights.tensors, *tensors)}
        self._opened: AbstractContextManager[OpenWeights] | None = None  # by the task itself

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the way to open the weights again; another process keeps them open as long as the task."""
        assert self._weights.reopen is not None
        return CountTensor.reopened, (self._weights.reopen,)

    @classmethod
    def reopened(cls, reopen: Callable[[], AbstractContextManager[OpenWeights]]) -> "CountTensor":
        """A task that opens its weights itself and keeps them open."""
        opened = reopen()
        task = cls(opened.__enter__())
        task._opened = opened
        return task

    def __call__(self, name: str, advance: Advance) -> Statistics:
        if name not in self._tensors:
            whole = self._tensors[name.rpartition("[")[0]]
            assert whole.matrices is not None
            self._tensors |= {tensor.name: tensor for tensor in whole.matrices()}
        return tensor_statistics(self._tensors[name], advance)
