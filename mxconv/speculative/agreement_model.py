"""What is believed of how often sets of skipped parts agree with the target, from those that were tried."""

from collections.abc import Mapping, Sequence

import numpy as np

from mxconv.arrays import F64
from mxconv.model.skipped import Skipped
from mxconv.speculative.layer_search import Part

SPREAD = 0.25  # of agreement among sets of one number of parts
REACH = 0.25  # of all parts: sets that differ in so many tell each other 1/e


class AgreementModel:
    """A Gaussian process over sets of parts: near sets agree about as often, and without parts the draft is the target.

    Agreement is expected to fall evenly with the number of parts, until some were seen.

    Args:
        parts: that may be skipped.
        seen: of each set tried, tokens that agreed and tokens compared.

    Source:
        SWIFT, arXiv 2410.06916, section 4.1; Draft & Verify, arXiv 2309.08168: sets by Bayesian optimization.
    """

    def __init__(self, parts: Sequence[Part], seen: Mapping[Skipped, tuple[float, float]]) -> None:
        self._parts = parts
        self._reach = max(REACH * len(parts), 1.0)
        self._tried = self._matrix([Skipped(), *seen])
        agreed, compared = np.array([(1.0, 1.0), *seen.values()]).T
        rate = (agreed + 1) / (compared + 2)
        noise = rate * (1 - rate) / compared
        noise[0] = 1e-6  # nothing skipped is the target itself
        self._factor = np.linalg.cholesky(self._kernel(self._tried, self._tried) + np.diag(noise))
        self._weights = np.linalg.solve(self._factor, agreed / compared - self._expected(self._tried))

    def believed(self, sets: Sequence[Skipped]) -> tuple[F64, F64]:
        """Agreement of sets and how unsure it is, a standard deviation; (len(sets),) each."""
        wanted = self._matrix(sets)
        along = np.linalg.solve(self._factor, self._kernel(self._tried, wanted))
        variance = SPREAD**2 - (along**2).sum(axis=0)
        return self._expected(wanted) + along.T @ self._weights, np.sqrt(variance.clip(0))

    def _matrix(self, sets: Sequence[Skipped]) -> F64:
        """(len(sets), len(parts)): 1 where a part is skipped."""
        rows = [[layer in (s.attention if kind == "a" else s.mlp) for kind, layer in self._parts] for s in sets]
        return np.array(rows, np.float64).reshape(len(sets), len(self._parts))

    def _kernel(self, ours: F64, theirs: F64) -> F64:
        differing = ours.sum(1)[:, None] + theirs.sum(1)[None, :] - 2 * ours @ theirs.T
        kernel: F64 = SPREAD**2 * np.exp(-differing / self._reach)
        return kernel

    def _expected(self, sets: F64) -> F64:
        expected: F64 = 1 - sets.mean(axis=1)
        return expected
