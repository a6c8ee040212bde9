"""A matrix whose weights are float32, in memory: what no 16-bit format holds."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mxconv.arrays import F32
from mxconv.kernels import rowwise


@dataclass(frozen=True, eq=False)
class Float32Matrix:
    """Implements `Matrix`."""

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
