"""Matrices of drafts: weights of 4 bits, and the 8-bit head beside them.

A 4-bit level is a nibble plane, a table of 16 levels and block scales: MXFP4 with blocks of 32 and E8M0 scales, BSFP
with groups of 128 and BF16 scales. MXINT8 weights are int8 elements in blocks of
32 with E8M0 scales. With integer weights the activations become int8 (one scale per 32), products accumulate as
integers over a block, and the two scales are applied once per block (ML-SpecQD §III-D). The paper's BSFP levels span
2^12 and are no integers; there the weights become float32 instead.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Literal, cast

import numpy as np
from numpy.typing import NDArray

from mxconv.arrays import F32, I8, U8, U16
from mxconv.codecs.bsfp.draft import GROUP
from mxconv.codecs.bsfp.table import SegmentTable
from mxconv.codecs.e2m1 import DOUBLED
from mxconv.codecs.e8m0 import decode_e8m0
from mxconv.codecs.float16 import BF16
from mxconv.codecs.int8 import BLOCK, quantize_int8
from mxconv.codecs.mxint8 import FRACTION_BITS
from mxconv.codecs.vnni8 import TILE_ROWS, unpack_nibbles, unpack_quads, unpack_scales
from mxconv.kernels import rowwise
from mxconv.kernels.matrix import Float32Matrix

Activations = Literal["int8", "fp32"]  # float32 costs time and no accuracy: ML-SpecQD Table III compares the two
MAX_TILE_WEIGHTS = 1 << 18  # float32 copies of a tile stay within a megabyte


@dataclass(frozen=True, eq=False)
class DraftMatrix(ABC):
    """What matrices of drafts share: weights and block scales as a package stores them."""

    shape: tuple[int, int]
    codes: U8  # (row tiles, columns, 64): nibbles of 8 columns, or int8 elements of 4
    stored_scales: U8 | U16  # (row tiles, blocks, 16): E8M0 of 32 columns, or BF16 patterns of 128
    factor: float  # of each scale
    rescale_factor: float = field(default=1.0, kw_only=True)  # what values are divided by, see formats/bsfp.md

    @abstractmethod
    def unscaled(self, start: int, stop: int) -> I8 | F32:
        """The weights of row tiles [start, stop) without their scales: (rows, padded columns)."""

    @abstractmethod
    def multiply(self, x: F32) -> F32: ...

    def scales(self, start: int, stop: int) -> F32:
        """The scales of row tiles [start, stop): (rows, blocks of 32) float32."""
        stored = self.stored_scales[start:stop]
        if stored.dtype == np.uint8:
            return unpack_scales(decode_e8m0(cast(U8, stored))) * np.float32(self.factor)
        return np.repeat(BF16.decode(unpack_scales(cast(U16, stored))), GROUP // BLOCK, axis=1)

    def rows(self, indices: NDArray[np.intp]) -> F32:
        return np.stack(
            [self._decoded(int(i) // TILE_ROWS, int(i) // TILE_ROWS + 1)[int(i) % TILE_ROWS] for i in indices]
        )

    def turned(self) -> Float32Matrix:
        return Float32Matrix(self._decoded(0, len(self.codes))[: self.shape[0]]).turned()

    def _decoded(self, start: int, stop: int) -> F32:
        """The values of row tiles [start, stop): (rows, in_features)."""
        weights = self.unscaled(start, stop)
        values = weights * np.repeat(self.scales(start, stop), BLOCK, axis=1)[:, : weights.shape[1]]
        with np.errstate(over="ignore"):  # of a forged factor
            return values[:, : self.shape[1]].astype(np.float32) / np.float32(self.rescale_factor)


class LateScaledMatrix(DraftMatrix):
    """Implements `Matrix` for drafts whose weights are integers: integer dot products over blocks, scaled late.

    The integers are exact whoever adds them: |weight| <= 127, |activation| <= 127, so a block of 32 stays below 2^24
    and even float32 arithmetic gives every bit. Sums over blocks go in ascending order.
    """

    def multiply(self, x: F32) -> F32:
        num_rows, num_columns = self.shape
        finite = np.all(np.isfinite(x), axis=1)
        # int8 has no infinity: such a token gets NaNs, a draft without confidence, and the target goes on alone
        quantized, x_scales = quantize_int8(np.where(finite[:, None], x, np.float32(0)))
        num_tokens, num_blocks = x_scales.shape
        blocks = quantized.reshape(num_tokens, num_blocks, BLOCK).transpose(1, 0, 2).astype(np.float32)
        result = np.empty((num_tokens, num_rows), np.float32)
        step = max(MAX_TILE_WEIGHTS // num_columns // TILE_ROWS, 1)
        for start in range(0, len(self.codes), step):
            stop = min(start + step, len(self.codes))
            rows = slice(start * TILE_ROWS, min(stop * TILE_ROWS, num_rows))
            weights = self.unscaled(start, stop)[:, : num_blocks * BLOCK].astype(np.float32)
            weights = weights.reshape(len(weights), num_blocks, BLOCK).transpose(1, 2, 0)
            sums = blocks @ weights  # (blocks, tokens, rows), integers
            scales = self.scales(start, stop)[:, :num_blocks].T
            scaled = sums * x_scales.T[:, :, None] * scales[:, None, :]
            result[:, rows] = scaled.sum(axis=0)[:, : rows.stop - rows.start]
        with np.errstate(over="ignore"):
            result /= np.float32(self.rescale_factor)
        result[~finite] = np.nan
        return result


@dataclass(frozen=True, eq=False)
class FourBitMatrix(LateScaledMatrix):
    """Implements `Matrix` for drafts whose levels are int8."""

    levels: I8  # (16,) by nibble

    def unscaled(self, start: int, stop: int) -> I8:
        return self.levels[unpack_nibbles(self.codes[start:stop])]


class EightBitMatrix(LateScaledMatrix):
    """Implements `Matrix` for drafts whose weights are int8."""

    def unscaled(self, start: int, stop: int) -> I8:
        return unpack_quads(self.codes[start:stop].view(np.int8))


@dataclass(frozen=True, eq=False)
class FourBitFloatMatrix(DraftMatrix):
    """Implements `Matrix` for drafts in float32: the paper's table, whose levels are no int8, and ablations."""

    levels: F32  # (16,) by nibble

    def unscaled(self, start: int, stop: int) -> F32:
        return self.levels[unpack_nibbles(self.codes[start:stop])]

    def multiply(self, x: F32) -> F32:
        def rows(start: int, stop: int) -> F32:  # start is a multiple of 16
            return self._decoded(start // TILE_ROWS, -(-stop // TILE_ROWS))[: stop - start]

        return rowwise.linear(x, self.shape[0], rows)


def mxfp4_matrix(
    shape: tuple[int, int], codes: U8, scales: U8, activations: Activations = "int8"
) -> FourBitMatrix | FourBitFloatMatrix:
    """The MXFP4 draft of a matrix of (out_features, in_features), from its stored arrays."""
    if activations == "fp32":
        return FourBitFloatMatrix(shape, codes, scales, 0.5, DOUBLED.astype(np.float32))
    return FourBitMatrix(shape, codes, scales, 0.5, DOUBLED)


def bsfp_draft_matrix(
    shape: tuple[int, int],
    codes: U8,
    scales: U16,
    table: SegmentTable,
    activations: Activations = "int8",
    rescale_factor: float = 1.0,
) -> FourBitMatrix | FourBitFloatMatrix:
    """The BSFP draft of a matrix, from its stored arrays: on the int8 path where the levels of its table allow."""
    if table.has_int8_levels and activations == "int8":
        levels = table.signed_levels.astype(np.int8)
        return FourBitMatrix(shape, codes, scales, 1.0, levels, rescale_factor=rescale_factor)
    return FourBitFloatMatrix(shape, codes, scales, 1.0, table.signed_levels, rescale_factor=rescale_factor)


def mxint8_matrix(shape: tuple[int, int], elements: U8, scales: U8) -> EightBitMatrix:
    """The MXINT8 draft of a matrix, from its stored arrays; elements are bytes of int8 in -127..127."""
    return EightBitMatrix(shape, elements, scales, 2.0**-FRACTION_BITS)
