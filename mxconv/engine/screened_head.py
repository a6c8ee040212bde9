"""An output head of which a draft reads few rows: those of the tokens that a screen lets through.

Normative text: formats/package.md, "Head screen".
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mxconv.arrays import F32
from mxconv.codecs.screen_axes import candidates
from mxconv.kernels.matrix import Float32Matrix, Matrix


@dataclass(frozen=True, eq=False)
class ScreenedHead:
    """Implements `Matrix` for a draft: candidates have the logits of the head, all others their scores.

    `NativeDecoder` gives the three matrices to the kernels; `multiply` is their reference.
    """

    projection: Matrix  # (rank, hidden_size)
    scores: Matrix  # (vocab_size, rank)
    head: Matrix  # (vocab_size, hidden_size), the target's
    num_candidates: int  # tiles of 16 tokens, whose highest scores bound the candidates'

    @property
    def shape(self) -> tuple[int, int]:
        return self.head.shape

    def multiply(self, x: F32) -> F32:
        logits = self.scores.multiply(self.projection.multiply(x))
        for row, taken in zip(logits, x, strict=True):
            (chosen,) = np.nonzero(candidates(row, self.num_candidates))
            row[chosen] = Float32Matrix(self.head.rows(chosen)).multiply(taken[None])[0]
        return logits

    def rows(self, indices: NDArray[np.intp]) -> F32:
        return self.head.rows(indices)

    def turned(self) -> Matrix:
        return self.head.turned()
