"""What each part that is skipped costs in agreement, learned from whole sets that were tried."""

from collections.abc import Sequence

import numpy as np

from mxconv.arrays import F64

FIRST_LOSS = 1.5  # of all parts together: without half of them a draft agrees about every second time
MEMORY = 0.995  # what is left in a study of the weight of all before it
HALF_SEEN = 0.1  # tokens, added to those that agreed and to those that did not: no logarithm of 0
LEAST_VARIANCE = 0.01  # of a study's logarithm: parts do not quite add up


class PartLosses:
    """Bayesian regression of the logarithm of agreement on the parts left out, as if each cost a factor of its own.

    Args:
        num_parts: at least one.
    """

    def __init__(self, num_parts: int) -> None:
        each = FIRST_LOSS / num_parts
        self._first = np.eye(num_parts) / each**2, np.full(num_parts, 1 / each)
        self._precision, self._weighted = (array.copy() for array in self._first)

    def learn(self, places: Sequence[int], num_agreed: int, num_compared: int) -> None:
        """A set tried: the places of its parts, and how many tokens agreed of those that were compared."""
        skipped = np.zeros(len(self._weighted))
        skipped[list(places)] = 1
        agreement = (num_agreed + HALF_SEEN) / (num_compared + 2 * HALF_SEEN)
        variance = (1 - agreement) / (agreement * num_compared) + LEAST_VARIANCE
        self._fade(MEMORY)
        self._precision += np.outer(skipped, skipped) / variance
        self._weighted += skipped * -np.log(agreement) / variance

    def forget(self, share: float) -> None:
        """Lose a share of what was learned."""
        self._fade(1 - share)

    def believed(self) -> F64:
        """(num_parts,): minus the logarithm of each part's factor, none below 0."""
        losses: F64 = np.linalg.solve(self._precision, self._weighted).clip(0)
        return losses

    def drawn(self, normal: F64) -> F64:
        """As `believed`, drawn from all that is possible by (num_parts,) standard normal numbers."""
        around = np.linalg.solve(np.linalg.cholesky(self._precision).T, normal)
        losses: F64 = (np.linalg.solve(self._precision, self._weighted) + around).clip(0)
        return losses

    def _fade(self, kept: float) -> None:
        first_precision, first_weighted = self._first
        self._precision = first_precision + kept * (self._precision - first_precision)
        self._weighted = first_weighted + kept * (self._weighted - first_weighted)
