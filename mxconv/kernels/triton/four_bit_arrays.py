"""The arrays of a 4-bit matrix on a device: nibbles, sixteen levels, and scales of blocks."""

from dataclasses import dataclass

import torch

from mxconv.codecs.bsfp.draft import GROUP
from mxconv.codecs.bsfp.table import SegmentTable
from mxconv.codecs.e2m1 import DOUBLED
from mxconv.codecs.mxfp4 import BLOCK
from mxconv.kernels.triton.upload import upload


@dataclass(frozen=True, eq=False)
class FourBitArrays:
    """What the 4-bit kernels read; T row tiles, C column tiles."""

    shape: tuple[int, int]
    codes: torch.Tensor  # (T, C, 16) int32: a lane's nibbles
    levels: torch.Tensor  # (16,) bfloat16 by nibble
    int8_levels: torch.Tensor | None  # (16,) int8, None where the levels are no integers
    scales: torch.Tensor  # (T, blocks, 16): uint8 E8M0, or int16 BF16 patterns
    scale_block: int  # columns that share a scale

    @classmethod
    def of_mxfp4(cls, codes: torch.Tensor, scales: torch.Tensor, shape: tuple[int, int]) -> "FourBitArrays":
        """MXFP4; levels are doubled, and halved again with the scales.

        Args:
            codes: (T, C, 16) int32 on the device.
            scales: (T, blocks, 16) uint8 E8M0, on the device.
            shape: (rows, columns) without padding.
        """
        doubled = upload(DOUBLED, codes.device)
        return cls(shape, codes, doubled.to(torch.bfloat16), doubled, scales, BLOCK)

    @classmethod
    def of_bsfp(
        cls, codes: torch.Tensor, scales: torch.Tensor, table: SegmentTable, shape: tuple[int, int]
    ) -> "FourBitArrays":
        """The draft in BSFP.

        Args:
            codes: (T, C, 16) int32 on the device; those of the exact weights.
            scales: (T, groups, 16) int16 patterns of BF16, on the device.
            table: levels that BF16 does not hold are rounded to it, as no table of mxconv's has.
            shape: (rows, columns) without padding.
        """
        levels = upload(table.signed_levels, codes.device)
        int8_levels = levels.to(torch.int8) if table.has_int8_levels else None
        return cls(shape, codes, levels.to(torch.bfloat16), int8_levels, scales, GROUP)

    @property
    def is_e8m0(self) -> bool:
        return self.scales.dtype == torch.uint8

    @property
    def num_bytes(self) -> int:
        """On the device, `codes` included."""
        return self.codes.nbytes + self.levels.nbytes + self.scales.nbytes
