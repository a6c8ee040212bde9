"""The arrays of a BSFP matrix on a device: as they lie in the file, but for row starts and escapes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mxconv.codecs.bsfp.packing import PackedBsfp, check_escapes
from mxconv.codecs.bsfp.table import SegmentTable
from mxconv.codecs.vnni8 import TILE_ROWS
from mxconv.kernels.triton.arrays.byte_tables import pattern_table, row_tables
from mxconv.kernels.triton.arrays.joined import joined, piece
from mxconv.kernels.triton.arrays.patches import Escaped, Patches, patches_of
from mxconv.kernels.triton.arrays.residual_fields import fields_of
from mxconv.kernels.triton.arrays.upload import as_words, upload

DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16}


@dataclass(frozen=True, eq=False)
class BsfpArrays:
    """What the kernels of the exact weights read; T row tiles, C column tiles. Of a stack, those of all its experts.

    Three things are made when a matrix is loaded: `starts`, 16 bytes for each row that has a shift, in place of the
    shifts; `residual_fields`, in place of bit planes; and `patches`, in place of the escape lists.
    """

    shape: tuple[int, int]  # of a stack, that of one expert
    dtype: torch.dtype  # of the weights
    num_planes: int  # residual bits beyond eight
    codes: torch.Tensor  # (T, C, 16) int32: a lane's nibbles
    residual_low: torch.Tensor  # (T, C, 16, 2) int32: a lane's low bytes
    residual_fields: torch.Tensor  # (T, C, num_planes, 16) uint8 as `fields_of` lays them
    starts: torch.Tensor  # (16 T, 4) int32, `pattern_table` by row; without row shifts (64, 4), `row_tables`
    has_row_starts: bool  # whether each row has starts of its own
    patches: Patches

    @classmethod
    def from_packed(
        cls,
        packed: PackedBsfp,
        table: SegmentTable,
        shape: tuple[int, int],
        device: torch.device,
        stored: Mapping[str, torch.Tensor] | None = None,
        num_planes: int = 0,
        has_row_starts: bool = False,
    ) -> "BsfpArrays":
        """Copy a matrix to a device.

        Args:
            packed: its arrays, usually views of a memory map.
            table: its segment table.
            shape: (rows, columns) without padding.
            device: where to.
            stored: arrays of `packed` by name that are on the device already; others are copied.
            num_planes: at least so many, as others of its stack have.
            has_row_starts: also without row shifts, as others of its stack have them, or another table.

        Raises:
            CodecError: the escape lists contradict themselves, or a row shift leaves the finite patterns.
        """
        check_escapes(packed)
        stored = {} if stored is None else stored

        def on_device(part: str, array: NDArray[Any]) -> torch.Tensor:
            return stored[part] if part in stored else upload(array, device)

        has_row_starts |= table.has_row_shifts
        num_planes = max(num_planes, table.residual_bits - 8)
        num_row_starts = TILE_ROWS * len(packed.codes) if has_row_starts else 1
        starts = table.row_starts(num_row_starts, packed.row_shifts).astype(np.uint16)
        escaped = Escaped(
            on_device("codes", packed.codes),
            on_device("residual_low", packed.residual_low),
            _with_planes(on_device("residual_high", packed.residual_high), num_planes),
            upload(starts, device),
            on_device("escape_counts", packed.escape_counts),
            on_device("escape_positions", packed.escape_positions),
            on_device("escape_high", packed.escape_high),
        )
        return cls(
            shape=shape,
            dtype=DTYPES[table.float_format.name],
            num_planes=num_planes,
            codes=as_words(escaped.codes),
            residual_low=as_words(escaped.residual_low),
            residual_fields=fields_of(escaped.residual_high),
            starts=upload(pattern_table(starts) if has_row_starts else row_tables(starts[0]), device),
            has_row_starts=has_row_starts,
            patches=patches_of(escaped),
        )

    @classmethod
    def stacked(cls, experts: "Sequence[BsfpArrays]") -> "BsfpArrays":
        """A stack of matrices of one shape and dtype, all with as many planes and all or none with row starts."""
        first = experts[0]
        return cls(
            first.shape, first.dtype, first.num_planes,
            codes=joined([each.codes for each in experts]),
            residual_low=joined([each.residual_low for each in experts]),
            residual_fields=joined([each.residual_fields for each in experts]),
            starts=joined([each.starts for each in experts]) if first.has_row_starts else first.starts,
            has_row_starts=first.has_row_starts,
            patches=Patches.stacked([each.patches for each in experts]),
        )  # fmt: skip

    def expert(self, number: int, num_experts: int) -> "BsfpArrays":
        """One of a stack: views."""
        codes, low, fields = (
            piece(each, number, num_experts) for each in (self.codes, self.residual_low, self.residual_fields)
        )
        starts = piece(self.starts, number, num_experts) if self.has_row_starts else self.starts
        patches = self.patches.expert(number, num_experts)
        return replace(self, codes=codes, residual_low=low, residual_fields=fields, starts=starts, patches=patches)

    @property
    def num_bytes(self) -> int:
        """On the device."""
        tensors = (self.codes, self.residual_low, self.residual_fields, self.starts)
        return sum(tensor.nbytes for tensor in tensors) + self.patches.num_bytes

    def for_kernels(self) -> tuple[torch.Tensor, ...]:
        """In the order in which kernels take them."""
        patches = self.patches
        arrays = (self.codes, self.residual_low, self.residual_fields, self.starts)
        return (*arrays, patches.hits, patches.firsts, patches.split_firsts, patches.words)


def _with_planes(planes: torch.Tensor, num_planes: int) -> torch.Tensor:
    """(T, C, num_planes, 16): further planes are zeros."""
    return torch.nn.functional.pad(planes, (0, 0, 0, num_planes - planes.shape[2]))
