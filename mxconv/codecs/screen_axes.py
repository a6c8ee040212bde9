"""The screen of a draft's output head: a matrix of fewer columns whose scores say which tokens may be the likeliest.

Scores are S P h, with S (vocabulary, rank) and P (rank, hidden_size), for the logits W h. Of all S P of this rank they
err least over given rows h, in the sum of squares. S is in MXFP4, which rounds columns of one size best: an orthogonal
matrix between S and P makes them alike.

Source:
    Shim et al., "SVD-Softmax: Fast Softmax Approximation on Large Vocabulary Neural Networks" (NIPS 2017): the singular
    value decomposition of W, from which the likeliest tokens are evaluated in full. Here it is that of W over the rows
    that it multiplies.
"""

from dataclasses import dataclass

import numpy as np

from mxconv.arrays import F32, F64
from mxconv.codecs.vnni8 import TILE_ROWS

DAMPING = 1e-3  # of the mean square of an input, added to every one
FEWEST_TILES = 32  # that a screen chooses; smaller vocabularies need none


@dataclass(frozen=True)
class ScreenAxes:
    """The directions of rows h that change logits, those that change them most first."""

    taken: F64  # (hidden_size, hidden_size): P of rank r is its first r rows
    given: F64  # (hidden_size, hidden_size): S of rank r is W times its first r columns

    @classmethod
    def of(cls, weights: F64, inputs: F64) -> "ScreenAxes":
        """The axes of a head from W^T W and of its inputs from H^T H, each (hidden_size, hidden_size)."""
        damped = inputs + DAMPING * inputs.trace() / len(inputs) * np.eye(len(inputs))
        values, vectors = np.linalg.eigh(damped)
        spread = (vectors * np.sqrt(values)) @ vectors.T  # h is this times what is alike in all directions
        inverse = (vectors / np.sqrt(values)) @ vectors.T
        _, axes = np.linalg.eigh(spread @ weights @ spread)
        axes = axes[:, ::-1]
        return cls(axes.T @ inverse, spread @ axes)

    def of_rank(self, rank: int) -> tuple[F64, F64]:
        """P, (rank, hidden_size), and what W is multiplied by to give S, (hidden_size, rank)."""
        turn = hartley(rank)
        return turn @ self.taken[:rank], self.given[:, :rank] @ turn


def hartley(size: int) -> F64:
    """The symmetric orthogonal matrix of the discrete Hartley transform, (size, size).

    Examples:
        >>> bool(np.allclose(hartley(6) @ hartley(6), np.eye(6)))
        True
    """
    angles = 2 * np.pi / size * np.outer(np.arange(size), np.arange(size))
    made: F64 = (np.cos(angles) + np.sin(angles)) / np.sqrt(size)
    return made


def num_chosen(most: int, vocab_size: int) -> int:
    """How many tiles of 16 tokens a screen chooses, `most` at most; 0 where the vocabulary needs no screen."""
    tiles = min(most, vocab_size // TILE_ROWS // 6)
    return tiles if tiles >= FEWEST_TILES else 0


def candidates(scores: F32, num_candidates: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which tokens are candidates, by the scores of all, (vocab_size,).

    A candidate's score is at least the `num_candidates`-th highest of those that the tiles of 16 tokens have at most.
    There are more candidates than that number, since a tile may hold several.
    """
    padded = np.full(-(-len(scores) // TILE_ROWS) * TILE_ROWS, -np.inf, np.float32)
    padded[: len(scores)] = scores
    highest = np.fmax.reduce(padded.reshape(-1, TILE_ROWS), 1, initial=-np.inf)
    least = -np.inf if num_candidates >= len(highest) else np.sort(highest)[-num_candidates]
    return scores >= least
