"""What the decoder requires of a weight matrix in any format, and the matrices of a target: 16-bit floats as they are
stored, those rebuilt from BSFP, and float32.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mxconv.arrays import F32, U16
from mxconv.codecs.float16 import FloatFormat
from mxconv.codecs.vnni8 import TILE_ROWS
from mxconv.kernels import rowwise


class Matrix(Protocol):
    """A weight matrix, (out_features, in_features)."""

    @property
    def shape(self) -> tuple[int, int]:
        """(out_features, in_features), without padding."""
        ...

    def multiply(self, x: F32) -> F32:
        """Map each row of `x` by itself: (num_tokens, in_features) to (num_tokens, out_features), float32.

        A matrix of the target must give a row the same bits whatever the other rows are and how many; a draft
        may choose its order of summation by the number of rows.
        """
        ...

    def rows(self, indices: NDArray[np.intp]) -> F32:
        """Dequantized rows, (len(indices), in_features) float32: the embedding look-up."""
        ...

    def turned(self) -> "Matrix":
        """The matrix of shape (in_features, out_features) with the same weights, in memory; they are copied."""
        ...


@dataclass(frozen=True, eq=False)
class Float32Matrix:
    """Implements `Matrix` for float32 weights in memory, which no 16-bit format holds."""

    values: F32  # (out_features, in_features)

    @property
    def shape(self) -> tuple[int, int]:
        out_features, in_features = self.values.shape
        return out_features, in_features

    def multiply(self, x: F32) -> F32:
        return rowwise.linear(x, len(self.values), lambda start, stop: self.values[start:stop])

    def rows(self, indices: NDArray[np.intp]) -> F32:
        return self.values[indices]

    def turned(self) -> "Float32Matrix":
        return Float32Matrix(np.ascontiguousarray(self.values.T))


@dataclass(frozen=True, eq=False)
class DenseMatrix:
    """Implements `Matrix` for 16-bit floats as they are stored; a tile at a time becomes float32, which is exact."""

    patterns: U16  # (out_features, in_features), usually a view of a memory-mapped file
    float_format: FloatFormat

    @property
    def shape(self) -> tuple[int, int]:
        out_features, in_features = self.patterns.shape
        return out_features, in_features

    def multiply(self, x: F32) -> F32:
        return rowwise.linear(x, len(self.patterns), self._decoded)

    def rows(self, indices: NDArray[np.intp]) -> F32:
        return self.float_format.decode(self.patterns[indices])

    def turned(self) -> "DenseMatrix":
        return DenseMatrix(np.ascontiguousarray(self.patterns.T), self.float_format)

    def _decoded(self, start: int, stop: int) -> F32:
        return self.float_format.decode(self.patterns[start:stop])


@dataclass(frozen=True, eq=False)
class BsfpMatrix:
    """Implements `Matrix` for the target in BSFP: rebuilds a few rows of exact weights, multiplies, forgets them.

    Bit-identical to `DenseMatrix` on the same weights, since the products are the same.
    """

    shape: tuple[int, int]
    float_format: FloatFormat
    target_rows: Callable[[int, int], U16]  # patterns of rows [start, stop); start is a multiple of 16

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

    def turned(self) -> DenseMatrix:
        return DenseMatrix(self.target_rows(0, self.shape[0]), self.float_format).turned()

    def _decoded(self, start: int, stop: int) -> F32:
        return self.float_format.decode(self.target_rows(start, stop))
