"""The arrays of a 4-bit matrix on a device: nibbles, the levels of its eight codes, and scales of blocks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from mxconv.arrays import F32
from mxconv.codecs.bsfp.draft import GROUP
from mxconv.codecs.bsfp.table import SegmentTable
from mxconv.codecs.e2m1 import DOUBLED, VALUES
from mxconv.codecs.mxfp4 import BLOCK
from mxconv.kernels.triton.arrays.byte_tables import int8_table, row_tables
from mxconv.kernels.triton.arrays.joined import joined, piece
from mxconv.kernels.triton.arrays.upload import upload


@dataclass(frozen=True, eq=False)
class FourBitArrays:
    """What the 4-bit kernels read; T row tiles, C column tiles. Of a stack of E experts, those of all of them."""

    shape: tuple[int, int]  # of a stack, that of one expert
    codes: torch.Tensor  # (T, C, 16) int32: a lane's nibbles
    levels: torch.Tensor  # (64, 4) int32, of a stack (64 E, 4): `row_tables` of the BF16 patterns of eight magnitudes
    int8_levels: (
        torch.Tensor | None
    )  # (4,) int32, of a stack (4 E,), as `int8_table` has them, None where the levels are no integers
    scales: torch.Tensor  # (T, blocks, 16): uint8 E8M0, or int16 BF16 patterns
    scale_block: int  # columns that share a scale

    @classmethod
    def of_mxfp4(cls, codes: torch.Tensor, scales: torch.Tensor, shape: tuple[int, int]) -> "FourBitArrays":
        """MXFP4; int8 levels are doubled, and halved again with the scales.

        Args:
            codes: (T, C, 16) int32 on the device.
            scales: (T, blocks, 16) uint8 E8M0, on the device.
            shape: (rows, columns) without padding.
        """
        return cls(shape, codes, _levels(VALUES[:8], codes), upload(int8_table(DOUBLED), codes.device), scales, BLOCK)

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
        signed = table.signed_levels
        int8_levels = upload(int8_table(signed.astype(np.int8)), codes.device) if table.has_int8_levels else None
        return cls(shape, codes, _levels(signed[:8], codes), int8_levels, scales, GROUP)

    @classmethod
    def stacked(cls, experts: "Sequence[FourBitArrays]") -> "FourBitArrays":
        """A stack of matrices of one shape and kind."""
        first = experts[0]
        int8_levels = [each.int8_levels for each in experts if each.int8_levels is not None]
        return cls(
            first.shape,
            joined([each.codes for each in experts]),
            joined([each.levels for each in experts]),
            joined(int8_levels) if len(int8_levels) == len(experts) else None,
            joined([each.scales for each in experts]),
            first.scale_block,
        )

    def expert(self, number: int, num_experts: int) -> "FourBitArrays":
        """One of a stack: views."""
        codes, levels, scales = (piece(each, number, num_experts) for each in (self.codes, self.levels, self.scales))
        int8_levels = None if self.int8_levels is None else piece(self.int8_levels, number, num_experts)
        return replace(self, codes=codes, levels=levels, scales=scales, int8_levels=int8_levels)

    @property
    def is_e8m0(self) -> bool:
        return self.scales.dtype == torch.uint8

    @property
    def num_bytes(self) -> int:
        """On the device, `codes` included."""
        return self.codes.nbytes + self.levels.nbytes + self.scales.nbytes


def _levels(magnitudes: F32, codes: torch.Tensor) -> torch.Tensor:
    patterns = torch.tensor(magnitudes, dtype=torch.float32).to(torch.bfloat16).view(torch.int16).numpy()
    return upload(row_tables(patterns.view(np.uint16)), codes.device)
