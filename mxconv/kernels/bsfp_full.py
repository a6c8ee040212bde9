"""The BSFP target: rebuild a few rows of exact 16-bit weights, multiply, forget them."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mxconv.arrays import F32, U16
from mxconv.codecs.float16 import FloatFormat
from mxconv.codecs.vnni8 import TILE_ROWS
from mxconv.kernels import rowwise
from mxconv.kernels.dense import DenseMatrix


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
        found = []
        for index in indices:
            start = int(index) // TILE_ROWS * TILE_ROWS
            found.append(self._decoded(start, min(start + TILE_ROWS, self.shape[0]))[int(index) - start])
        return np.stack(found)

    def turned(self) -> DenseMatrix:
        return DenseMatrix(self.target_rows(0, self.shape[0]), self.float_format).turned()

    def _decoded(self, start: int, stop: int) -> F32:
        return self.float_format.decode(self.target_rows(start, stop))
