"""Experts that a checkpoint stacks in one tensor of three dimensions: each a matrix, stored one below the other.

    experts = StackedExperts((8, 64, 192), "in_out")
    experts.matrix_shape       # (192, 64): (out_features, in_features) of each
    experts.stored_shape       # (1536, 64): what the arrays of a package hold

Normative text: formats/package.md, "Stacked experts".
"""

from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from mxconv.codecs.vnni8 import TILE_ROWS, padded

Axes = Literal["out_in", "in_out"]
Scalar = TypeVar("Scalar", bound=np.generic)


@dataclass(frozen=True)
class StackedExperts:
    """A stack of matrices.

    Args:
        shape: of the tensor, no dimension empty: (experts, out_features, in_features), or the last two exchanged.
        axes: which of the two it is.
    """

    shape: tuple[int, int, int]
    axes: Axes

    @property
    def num_experts(self) -> int:
        return self.shape[0]

    @property
    def matrix_shape(self) -> tuple[int, int]:
        """(out_features, in_features) of each expert."""
        first, second = self.shape[1:]
        return (first, second) if self.axes == "out_in" else (second, first)

    @property
    def num_tiles(self) -> int:
        """Row tiles of each expert."""
        return padded(self.matrix_shape[0], TILE_ROWS) // TILE_ROWS

    @property
    def stored_shape(self) -> tuple[int, int]:
        """(rows, in_features) of the matrix that the arrays of a package hold: every expert padded to whole tiles."""
        return self.num_experts * self.num_tiles * TILE_ROWS, self.matrix_shape[1]

    def tiles(self, expert: int) -> tuple[int, int]:
        """The row tiles [first, end) of an expert."""
        return expert * self.num_tiles, (expert + 1) * self.num_tiles

    def matrix(self, stored: NDArray[Scalar]) -> NDArray[Scalar]:
        """An expert as the tensor has it to (out_features, in_features), or back: a view."""
        return stored if self.axes == "out_in" else stored.T
