"""Draws whose noise is the same for every level.

Source:
    Design section 5.3: Gumbel-max with numbers keyed by seed and position.
"""

import numpy as np

from mxconv.arrays import F32, F64, I64
from mxconv.speculation.acceptance import Verdict
from mxconv.speculation.draft import Proposal
from mxconv.speculation.guesses import SHARPNESS, Guesses, at_least
from mxconv.speculation.path_penalties import PathPenalties, Rows
from mxconv.speculation.rules.walk import walk
from mxconv.text.distribution import Sampling, distribution

MOST_POSITIONS = 32  # of which the noise is kept: a round's


class CoupledAcceptance:
    """Draws with Gumbel noise keyed by seed and position.

    Args:
        sampling: how logits become a distribution.
        seed: any integer of 64 bits.
    """

    def __init__(self, sampling: Sampling, seed: int) -> None:
        self.sampling = sampling
        self.seed = seed
        self.penalties: PathPenalties | None = None
        self._uniform: dict[int, F64] = {}  # position -> numbers of the tokens from 0 on, for some positions

    def judge(self, logits: Rows, proposal: Proposal, position: int) -> Verdict:
        return walk(proposal, lambda node, depth: self.draw(logits[node + 1], position + depth))

    def ranking(self, logits: F32, position: int, tokens: I64 | None = None) -> F64:
        return self.perturbed(distribution(logits, self.sampling), position, tokens)

    def draw(self, logits: F32, position: int) -> int:
        """The token of one position: argmax of log-probability plus noise, (vocab_size,) float32 in."""
        support, scores = self._scores(logits, position)
        return int(support[np.argmax(scores)])

    def guesses(
        self,
        logits: F32,
        position: int,
        least: float,
        most: int,
        first: int | None = None,
        sharpness: float = SHARPNESS,
    ) -> Guesses:
        """In the order of the scores, which is that of draws without replacement."""
        support, scores = self._scores(logits, position)
        best = np.argpartition(-scores, min(most, len(scores) - 1))[:most]
        best = best[np.argsort(-scores[best], kind="stable")]
        with np.errstate(under="ignore"):
            weights = np.exp((scores - scores[best[0]]) * sharpness)
        return at_least(least, support[best].tolist(), (weights[best] / weights.sum()).tolist())

    def _scores(self, logits: F32, position: int) -> tuple[I64, F64]:
        """The tokens that may be drawn, ascending, and what decides between them."""
        shares = distribution(logits, self.sampling)
        (support,) = shares.nonzero()
        return support, self.perturbed(shares[support], position, support)

    def perturbed(self, shares: F64, position: int, tokens: I64 | None = None) -> F64:
        """Log-probability plus the noise of a position: the argmax is the draw.

        Args:
            shares: (n,) probabilities, of all tokens or of some; of 0 comes minus infinity.
            position: of the token to be drawn in the sequence, the prompt counted.
            tokens: (n,) ids of which the shares are; None where they are of all, in order.
        """
        ids = np.arange(len(shares)) if tokens is None else tokens
        uniform = self._uniform_of(position, int(ids.max()) + 1)[ids]
        with np.errstate(divide="ignore"):  # a noise of 0, once in 2^53, is minus infinity: never chosen
            scores: F64 = np.log(shares) - np.log(-np.log(uniform))
        return scores

    def _uniform_of(self, position: int, count: int) -> F64:
        """At least `count` numbers; the same at every call, since draft and target ask for the same positions."""
        known = self._uniform.get(position)
        if known is None or len(known) < count:
            # a token's noise is that of its id in one stream, so models with padded vocabularies hear the same
            key = np.array([self.seed, position], np.uint64)
            known = np.random.Generator(np.random.Philox(key=key)).random(count)
            self._uniform.pop(position, None)
            while len(self._uniform) >= MOST_POSITIONS:
                del self._uniform[next(iter(self._uniform))]
            self._uniform[position] = known
        return known
