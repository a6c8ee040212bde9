"""A matrix whose weights are 16-bit floats, read from the memory map as they are."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mxconv.arrays import F32, U16
from mxconv.codecs.float16 import FloatFormat
from mxconv.kernels import rowwise


@dataclass(frozen=True, eq=False)
class DenseMatrix:
    """Implements `Matrix`. Weights become float32 a tile at a time, which is exact.

    Args:
        patterns: (out_features, in_features) uint16, usually a view of a memory-mapped file.
        float_format: how to read them.
    """

    patterns: U16
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
