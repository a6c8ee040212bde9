"""Slices of rows as 16-bit patterns: the one place where weights enter the codecs."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import cast

import numpy as np
from numpy.typing import NDArray

from mxconv.arrays import F32, U16
from mxconv.checkpoint.fp8_matrix import Fp8Matrix
from mxconv.checkpoint.stacked import StackedExperts
from mxconv.checkpoint.tensor import SourceTensor
from mxconv.codecs.bsfp.rescale import rescale
from mxconv.codecs.float16 import FORMATS, FloatFormat
from mxconv.codecs.vnni8 import TILE_ROWS

MAX_SLICE_WEIGHTS = 1 << 20  # a worker works on 2 MB of weights; memory.py says how much that takes


def rounded(rows: NDArray[np.generic], dtype: str, float_format: FloatFormat) -> U16:
    """Rows of a tensor in another float, as patterns of this one: to nearest, ties to even."""
    values = FORMATS[dtype].decode(cast(U16, rows)) if dtype in FORMATS else cast(F32, rows)
    return float_format.encode(values)


@dataclass(frozen=True)
class PatternRows:
    """A matrix as patterns, slice by slice; resident memory stays flat however large it is.

    Of a tensor that is a stack it is the matrix of one expert, as (out_features, in_features).
    """

    tensor: SourceTensor
    float_format: FloatFormat
    is_cast: bool = False
    rescale_factor: float = 1.0
    experts: StackedExperts | None = None
    expert: int = 0
    fp8: Fp8Matrix | None = None
    slice_weights: int = MAX_SLICE_WEIGHTS

    @property
    def shape(self) -> tuple[int, int]:
        if self.experts is not None:
            return self.experts.matrix_shape
        num_rows, *inside = self.tensor.shape
        return num_rows, prod(inside)

    def slices(self) -> Iterator[tuple[int, NDArray[np.generic], U16]]:
        """Ascending slices of whole tiles, of `slice_weights` or, where a tile's rows have more, of one tile.

        Yields:
            The first row, the source's rows (16-bit patterns, a view unless cast; or bytes of FP8), and the patterns
            that are encoded: the same, or rescaled, or decoded from FP8.
        """
        num_rows, num_columns = self.shape
        matrix = self._matrix()
        step = max(self.slice_weights // num_columns // TILE_ROWS, 1) * TILE_ROWS
        for start in range(0, num_rows, step):
            stop = min(start + step, num_rows)
            rows = self.tensor.rows(start, stop) if matrix is None else np.ascontiguousarray(matrix[start:stop])
            if self.fp8 is not None:
                yield start, rows, rescale(self.fp8.patterns(start, stop), self.rescale_factor, self.float_format)
                self.tensor.release(start, stop)
                continue
            patterns = rounded(rows, self.tensor.dtype, self.float_format) if self.is_cast else cast(U16, rows)
            yield start, patterns, rescale(patterns, self.rescale_factor, self.float_format)
            if self.experts is None:
                self.tensor.release(start, stop)
        if self.experts is not None:
            self.tensor.release(self.expert, self.expert + 1)

    def _matrix(self) -> NDArray[np.generic] | None:
        """Of the expert of a stack, uncopied."""
        if self.experts is None:
            return None
        (stored,) = self.tensor.rows(self.expert, self.expert + 1)
        return self.experts.matrix(stored)
