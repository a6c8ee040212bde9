"""The arrays of a BSFP matrix on a device: those of the file, except row starts, residual planes and escapes.

Bits of residuals beyond eight lie column beside column instead of plane above plane; a lane has P bytes either way. As
a little-endian number its lower half holds the P bits of columns 0, 2, 4, 6, its upper half those of columns 1, 3, 5,
7: a shift and a mask give two columns, however many planes there are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from mxconv.codecs.bsfp.packing import escape_mask
from mxconv.codecs.vnni8 import TILE_ROWS
from mxconv.gpu.device_arrays import as_words, expert_of, pattern_table, row_tables, stacked, upload
from mxconv.gpu.patches import Patches, patches_of
from mxconv.package.stored import StoredBsfp

LANES_AT_A_TIME = 1 << 20  # which keeps intermediate arrays below 64 MB
COPIED = ("codes", "residual_low", "residual_high", "escape_counts", "escape_positions", "escape_high")
DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16}


@dataclass(frozen=True, eq=False)
class BsfpArrays:
    """What the kernels of the exact weights read: T row tiles, C column tiles; a stack has the arrays of all experts.

    Loading makes three of them: `starts`, 16 bytes for each row that has a shift, instead of the shifts;
    `residual_fields` instead of bit planes; and `patches` instead of the escape lists.
    """

    shape: tuple[int, int]  # of one matrix
    dtype: torch.dtype  # of the weights
    num_planes: int  # residual bits beyond eight
    codes: torch.Tensor  # (T, C, 16) int32: a lane's nibbles
    residual_low: torch.Tensor  # (T, C, 16) int64: a lane's low bytes
    residual_fields: torch.Tensor  # (T, C, num_planes, 16) uint8, see `fields_of`
    starts: torch.Tensor  # (16 T, 4) int32, `pattern_table` by row; without row shifts (64, 4), `row_tables`
    has_row_starts: bool  # whether each row has starts of its own
    patches: Patches

    @classmethod
    def from_stored(
        cls,
        stored: StoredBsfp,
        device: torch.device,
        parts: Mapping[str, torch.Tensor],
        num_planes: int = 0,
        has_row_starts: bool = False,
    ) -> "BsfpArrays":
        """Copy a matrix to a device.

        Args:
            stored: its arrays, usually views of a memory map.
            device: the destination.
            parts: those by name that are on the device already; the others are copied.
            num_planes: the least number of planes, where other experts of its stack have more.
            has_row_starts: whether rows get tables of their own without row shifts, since other experts of its stack
                have shifts or another table.

        Raises:
            CodecError: the escape lists contradict themselves, or a row shift leaves the finite patterns.
        """
        packed, table = stored.packed, stored.table
        escape_mask(packed)

        own = {name: parts[name] if name in parts else upload(getattr(packed, name), device) for name in COPIED}
        has_row_starts |= table.has_row_shifts
        num_planes = max(num_planes, table.residual_bits - 8)
        num_row_starts = TILE_ROWS * len(packed.codes) if has_row_starts else 1
        starts = table.row_starts(num_row_starts, packed.row_shifts).astype(np.uint16)
        # planes of zeros, where another expert of the stack has more
        missing = num_planes - own["residual_high"].shape[2]
        own["residual_high"] = torch.nn.functional.pad(own["residual_high"], (0, 0, 0, missing))
        return cls(
            shape=stored.shape,
            dtype=DTYPES[table.float_format.name],
            num_planes=num_planes,
            codes=as_words(own["codes"]),
            residual_low=as_words(own["residual_low"]),
            residual_fields=fields_of(own["residual_high"]),
            starts=upload(pattern_table(starts) if has_row_starts else row_tables(starts[0]), device),
            has_row_starts=has_row_starts,
            patches=patches_of(own, upload(starts, device)),
        )

    @classmethod
    def stacked(cls, experts: "Sequence[BsfpArrays]") -> "BsfpArrays":
        """Stack matrices of one shape and dtype, all with as many planes, and all or none with row starts."""
        made = replace(stacked(experts), patches=Patches.stacked([each.patches for each in experts]))
        return made if made.has_row_starts else replace(made, starts=experts[0].starts)

    def expert(self, number: int, num_experts: int) -> "BsfpArrays":
        """View one matrix of a stack."""
        made = replace(expert_of(self, number, num_experts), patches=self.patches.expert(number, num_experts))
        return made if made.has_row_starts else replace(made, starts=self.starts)

    @property
    def num_bytes(self) -> int:
        """Bytes on the device."""
        tensors = (self.codes, self.residual_low, self.residual_fields, self.starts)
        return sum(tensor.nbytes for tensor in tensors) + self.patches.num_bytes

    def for_kernels(self) -> tuple[torch.Tensor, ...]:
        """Arrays in the order of the kernels' parameters."""
        patches = self.patches
        arrays = (self.codes, self.residual_low, self.residual_fields, self.starts)
        return (*arrays, patches.hits, patches.firsts, patches.split_firsts, patches.words)


def fields_of(planes: torch.Tensor) -> torch.Tensor:
    """Transpose (T, C, P, 16) uint8 bit planes, as `residual_high` in the file, to fields in as many bytes."""
    fields = torch.empty_like(planes)
    row_tiles, column_tiles, num_planes, _ = planes.shape
    step = max(LANES_AT_A_TIME // (16 * column_tiles), 1)
    for first in range(0, row_tiles if num_planes else 0, step):
        some = planes[first : first + step].long()
        lanes = torch.zeros_like(some[:, :, 0])
        for plane in range(num_planes):
            for column in range(8):
                place = num_planes * (column // 2 + column % 2 * 4) + plane
                lanes |= (some[:, :, plane] >> column & 1) << place
        for byte in range(num_planes):
            fields[first : first + step, :, byte] = lanes >> 8 * byte & 255
    return fields
