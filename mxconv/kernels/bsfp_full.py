"""The BSFP target: rebuild a few rows of exact 16-bit weights, multiply, forget them."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mxconv.arrays import F32, U16
from mxconv.codecs.float16 import FloatFormat
from mxconv.codecs.vnni8 import TILE_ROWS
from mxconv.kernels import rowwise


@dataclass(frozen=True, eq=False)
class BsfpMatrix:
    """Implements `Matrix`; bit-identical to `DenseMatrix` on the same weights, since the products are the same.

    Args:
        shape: (out_features, in_features).
        float_format: of the rebuilt weights.
        target_rows: 16-bit patterns of rows [start, stop); start is a multiple of 16.
    """

    shape: tuple[int, int]
    float_format: FloatFormat
    target_rows: Callable[[int, int], U16]

    def multiply(self, x: F32) -> F32:
        return rowwise.linear(x, self.shape[0], self._decoded)

    def rows(self, indices: NDArray[np.intp]) -> F32:
        found = np.empty((len(indices), self.shape[1]), np.float32)
        tile, rows = -1, found
        for place, index in enumerate(indices):
            if int(index) // TILE_ROWS != tile:  # neighbours are decoded together
                tile = int(index) // TILE_ROWS
                rows = self._decoded(tile * TILE_ROWS, min((tile + 1) * TILE_ROWS, self.shape[0]))
            found[place] = rows[int(index) % TILE_ROWS]
        return found

    def _decoded(self, start: int, stop: int) -> F32:
        return self.float_format.decode(self.target_rows(start, stop))
