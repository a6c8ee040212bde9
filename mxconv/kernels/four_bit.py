"""4-bit weights times activations: one kernel for every draft.

A 4-bit level is a nibble plane, a table of 16 levels and block scales: MXFP4 with blocks of 32 and E8M0 scales, BSFP
with groups of 128 and BF16 scales. With integer levels the activations become int8 and both are scaled late, see
late_scaling.py. The paper's BSFP levels span 2^12 and are no integers; there the weights become float32 instead.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mxconv.arrays import F32, I8, U8, U16
from mxconv.codecs.bsfp.draft import GROUP
from mxconv.codecs.bsfp.table import SegmentTable
from mxconv.codecs.e2m1 import DOUBLED
from mxconv.codecs.e8m0 import decode_e8m0
from mxconv.codecs.float16 import BF16
from mxconv.codecs.int8 import BLOCK
from mxconv.codecs.vnni8 import TILE_ROWS, unpack_nibbles, unpack_scales
from mxconv.kernels import rowwise
from mxconv.kernels.float32 import Float32Matrix
from mxconv.kernels.late_scaling import LateScaledMatrix

Activations = Literal["int8", "fp32"]  # float32 costs time and no accuracy: ML-SpecQD Table III compares the two


@dataclass(frozen=True, eq=False)
class FourBitMatrix(LateScaledMatrix):
    """Implements `Matrix` for drafts whose levels are int8."""

    codes: U8  # (row tiles, column tiles, 64) nibbles
    levels: I8  # (16,) by nibble

    def integers(self, start: int, stop: int) -> I8:
        return self.levels[unpack_nibbles(self.codes[start:stop])]


@dataclass(frozen=True, eq=False)
class FourBitFloatMatrix:
    """Implements `Matrix` for drafts in float32: the paper's table, whose levels are no int8, and ablations."""

    shape: tuple[int, int]
    codes: U8  # (row tiles, column tiles, 64)
    levels: F32  # (16,) by nibble
    scales: Callable[[int, int], F32]  # of row tiles [start, stop): (rows, blocks of 32)

    def multiply(self, x: F32) -> F32:
        return rowwise.linear(x, self.shape[0], self._decoded)

    def rows(self, indices: NDArray[np.intp]) -> F32:
        return np.concatenate([self._decoded(int(i), int(i) + 1) for i in indices])

    def turned(self) -> Float32Matrix:
        return Float32Matrix(self._decoded(0, self.shape[0])).turned()

    def _decoded(self, start: int, stop: int) -> F32:
        first, last = start // TILE_ROWS, -(-stop // TILE_ROWS)
        scales = np.repeat(self.scales(first, last), BLOCK, axis=1)
        values = self.levels[unpack_nibbles(self.codes[first:last])] * scales[:, : self.codes.shape[1] * 8]
        skipped = start - first * TILE_ROWS
        return values[skipped : skipped + stop - start, : self.shape[1]]


def mxfp4_matrix(
    shape: tuple[int, int], codes: U8, scales: U8, activations: Activations = "int8"
) -> FourBitMatrix | FourBitFloatMatrix:
    """The MXFP4 draft of a matrix.

    Args:
        shape: (out_features, in_features).
        codes: (row tiles, column tiles, 64).
        scales: (row tiles, blocks, 16) E8M0.
        activations: what the weights are multiplied by.
    """

    def block_scales(start: int, stop: int) -> F32:
        return unpack_scales(decode_e8m0(scales[start:stop])) * np.float32(0.5)  # the levels are doubled

    if activations == "fp32":
        return FourBitFloatMatrix(shape, codes, DOUBLED.astype(np.float32), block_scales)
    return FourBitMatrix(shape, block_scales, codes, DOUBLED)


def bsfp_draft_matrix(
    shape: tuple[int, int], codes: U8, scales: U16, table: SegmentTable, activations: Activations = "int8"
) -> FourBitMatrix | FourBitFloatMatrix:
    """The BSFP draft of a matrix, on the int8 path where its levels allow.

    Args:
        shape: (out_features, in_features).
        codes: (row tiles, column tiles, 64).
        scales: (row tiles, groups, 16) BF16 patterns.
        table: the tensor's segment table.
        activations: what the weights are multiplied by.
    """

    def block_scales(start: int, stop: int) -> F32:
        groups = BF16.decode(unpack_scales(scales[start:stop]))
        return np.repeat(groups, GROUP // BLOCK, axis=1)

    if table.has_int8_levels and activations == "int8":
        return FourBitMatrix(shape, block_scales, codes, table.signed_levels.astype(np.int8))
    return FourBitFloatMatrix(shape, codes, table.signed_levels, block_scales)
