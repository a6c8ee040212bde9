"""Slices of rows as 16-bit patterns: the one place where weights enter the codecs."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import cast

import numpy as np
from numpy.typing import NDArray

from mxconv.arrays import F32, U16
from mxconv.codecs.bsfp.speq import rescale
from mxconv.codecs.float16 import FORMATS, FloatFormat
from mxconv.codecs.vnni8 import TILE_ROWS
from mxconv.conversion.plan import TensorPlan


def rounded(rows: NDArray[np.generic], dtype: str, float_format: FloatFormat) -> U16:
    """Rows of a tensor in another float, as patterns of this one: to nearest, ties to even."""
    values = FORMATS[dtype].decode(cast(U16, rows)) if dtype in FORMATS else cast(F32, rows)
    return float_format.encode(values)


@dataclass(frozen=True)
class PatternRows:
    """A matrix as patterns, slice by slice; resident memory stays flat however large it is.

    Of a tensor that is a stack it is the matrix of one expert, as (out_features, in_features).
    """

    plan: TensorPlan
    expert: int = 0
    rescale_factor: float = 1.0

    @property
    def float_format(self) -> FloatFormat:
        assert self.plan.float_format is not None
        return self.plan.float_format

    def slices(self) -> Iterator[tuple[int, NDArray[np.generic], U16]]:
        """Ascending slices of whole tiles, of `slice_weights` or, where a tile's rows have more, of one tile.

        Yields:
            The first row, the source's rows (16-bit patterns, a view unless cast; or bytes of FP8), and the patterns
            that are encoded: the same, or rescaled, or decoded from FP8.
        """
        plan, tensor, matrix = self.plan, self.plan.tensor, None
        num_rows, num_columns = tensor.shape[0], prod(tensor.shape[1:])
        if plan.experts is not None:
            (stored,) = tensor.rows(self.expert, self.expert + 1)
            matrix = plan.experts.matrix(stored)
            num_rows, num_columns = matrix.shape
        step = max(plan.slice_weights // num_columns // TILE_ROWS, 1) * TILE_ROWS
        for start in range(0, num_rows, step):
            stop = min(start + step, num_rows)
            rows = tensor.rows(start, stop) if matrix is None else np.ascontiguousarray(matrix[start:stop])
            if plan.fp8 is not None:
                yield start, rows, rescale(plan.fp8.patterns(start, stop), self.rescale_factor, self.float_format)
                tensor.release(start, stop)
                continue
            patterns = rounded(rows, tensor.dtype, self.float_format) if plan.is_cast else cast(U16, rows)
            yield start, patterns, rescale(patterns, self.rescale_factor, self.float_format)
            if plan.experts is None:
                tensor.release(start, stop)
        if plan.experts is not None:
            tensor.release(self.expert, self.expert + 1)
