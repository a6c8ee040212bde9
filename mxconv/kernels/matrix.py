"""What the decoder asks of a weight matrix, whatever format its bytes are in."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mxconv.arrays import F32


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
