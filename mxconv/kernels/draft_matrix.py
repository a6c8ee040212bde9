"""Matrices of drafts: 4-bit weights, and the 8-bit head beside them.

A 4-bit level is a nibble plane, a table of 16 levels and block scales: MXFP4 with blocks of 32 and E8M0 scales, BSFP
with groups of 128 and BF16 scales. MXINT8 weights are int8 elements in blocks of 32 with E8M0 scales. With integer
weights the activations become int8 (one scale per 32), products accumulate as integers over a block, and the two scales
are applied once per block (ML-SpecQD §III-D). The paper's BSFP levels span 2^12 and are no integers; there the weights
become float32 instead.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mxconv.arrays import F32, I8, U8, U16, Bool
from mxconv.codecs.bsfp.draft import GROUP
from mxconv.codecs.bsfp.table import SegmentTable
from mxconv.codecs.e2m1 import DOUBLED
from mxconv.codecs.e8m0 import decode_e8m0
from mxconv.codecs.float16 import BF16
from mxconv.codecs.int8 import BLOCK, quantize_int8
from mxconv.codecs.vnni8 import TILE_ROWS, unpack_nibbles, unpack_quads, unpack_scales
from mxconv.kernels import rowwise
from mxconv.kernels.matrix import Float32Matrix

Activations = Literal["int8", "fp32"]  # float32 costs time and no accuracy: ML-SpecQD Table III compares the two
MAX_TILE_WEIGHTS = 1 << 18  # float32 copies of a tile stay within a megabyte
ELEMENT_SCALE = 2.0**-6  # OCP MX v1.0: an INT8 element is its integer times 2^-6


@dataclass(frozen=True, eq=False)
class LateScaledMatrix(ABC):
    """Implements `Matrix` for drafts: integer dot products over blocks, scaled late.

    The integers are exact whoever adds them: |weight| <= 127, |activation| <= 127, so a block of 32 stays below 2^24
    and even float32 arithmetic gives every bit. Sums over blocks go in ascending order.
    """

    shape: tuple[int, int]
    scales: Callable[[int, int], F32]  # of row tiles [start, stop): (rows, blocks of 32) float32

    @abstractmethod
    def integers(self, start: int, stop: int) -> I8:
        """The weights of row tiles [start, stop) without their scales: (rows, padded columns) in -127..127."""

    def multiply(self, x: F32) -> F32:
        num_rows, num_columns = self.shape
        finite: Bool = np.all(np.isfinite(x), axis=1)
        # int8 has no infinity: such a token gets NaNs, a draft without confidence, and the target goes on alone
        quantized, x_scales = quantize_int8(np.where(finite[:, None], x, np.float32(0)))
        num_tokens, num_blocks = x_scales.shape
        blocks = quantized.reshape(num_tokens, num_blocks, BLOCK).transpose(1, 0, 2).astype(np.float32)
        result = np.empty((num_tokens, num_rows), np.float32)
        num_tiles = -(-num_rows // TILE_ROWS)
        step = max(MAX_TILE_WEIGHTS // num_columns // TILE_ROWS, 1)
        for start in range(0, num_tiles, step):
            stop = min(start + step, num_tiles)
            rows = slice(start * TILE_ROWS, min(stop * TILE_ROWS, num_rows))
            weights = self.integers(start, stop)[:, : num_blocks * BLOCK].astype(np.float32)
            weights = weights.reshape(len(weights), num_blocks, BLOCK).transpose(1, 2, 0)
            sums = blocks @ weights  # (blocks, tokens, rows), integers
            scales = self.scales(start, stop)[:, :num_blocks].T
            scaled = sums * x_scales.T[:, :, None] * scales[:, None, :]
            result[:, rows] = scaled.sum(axis=0)[:, : rows.stop - rows.start]
        result[~finite] = np.nan
        return result

    def rows(self, indices: NDArray[np.intp]) -> F32:
        found = [self._tile(int(index) // TILE_ROWS)[int(index) % TILE_ROWS] for index in indices]
        return np.stack(found)

    def turned(self) -> Float32Matrix:
        return Float32Matrix(self.rows(np.arange(self.shape[0]))).turned()

    def _tile(self, tile: int) -> F32:
        """(16, in_features) dequantized rows."""
        integers = self.integers(tile, tile + 1)
        values = integers * np.repeat(self.scales(tile, tile + 1), BLOCK, axis=1)[:, : integers.shape[1]]
        return values[:, : self.shape[1]].astype(np.float32)


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


@dataclass(frozen=True, eq=False)
class EightBitMatrix(LateScaledMatrix):
    """Implements `Matrix` for drafts whose weights are int8."""

    elements: I8  # (row tiles, column quads, 64)

    def integers(self, start: int, stop: int) -> I8:
        return unpack_quads(self.elements[start:stop])


def mxint8_matrix(shape: tuple[int, int], elements: U8, scales: U8) -> EightBitMatrix:
    """The MXINT8 draft of a matrix.

    Args:
        shape: (out_features, in_features).
        elements: (row tiles, column quads, 64) bytes of int8 elements in -127..127.
        scales: (row tiles, blocks, 16) E8M0.
    """

    def block_scales(start: int, stop: int) -> F32:
        return unpack_scales(decode_e8m0(scales[start:stop])) * np.float32(ELEMENT_SCALE)

    return EightBitMatrix(shape, block_scales, elements.view(np.int8))
