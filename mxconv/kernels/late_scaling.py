"""Integer weights times int8 activations, scaled late: the arithmetic of every draft whose weights are integers.

Activations become int8 (one scale per 32), products accumulate as integers over a block, and the two scales are applied
once per block (ML-SpecQD §III-D).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mxconv.arrays import F32, I8, Bool
from mxconv.codecs.int8 import BLOCK, quantize_int8
from mxconv.codecs.vnni8 import TILE_ROWS
from mxconv.kernels.float32 import Float32Matrix

MAX_TILE_WEIGHTS = 1 << 18  # float32 copies of a tile stay within a megabyte


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
