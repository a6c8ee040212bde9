"""Speculative sampling: the target's distribution, by accepting and drawing from what is left.

Source:
    arXiv 2211.17192, Theorem 3.5; arXiv 2302.01318. Siblings: recursive rejection sampling of Recursive Speculative
    Decoding (candidates without replacement).
"""

from collections.abc import Sequence

import numpy as np

from mxconv.arrays import F32, F64, I64
from mxconv.drafts.acceptance import Verdict
from mxconv.drafts.guesses import SHARPNESS, Guesses
from mxconv.drafts.path_penalties import PathPenalties, Rows
from mxconv.drafts.proposal import Proposal
from mxconv.text.distribution import Sampling, distribution

LEAST_SIBLING = 0.1  # share of a token for which a further one is drawn


class RejectionAcceptance:
    """Speculative sampling.

    Args:
        sampling: how logits become a distribution.
        seed: of all draws of the run.
    """

    def __init__(self, sampling: Sampling, seed: int) -> None:
        self.sampling = sampling
        self.penalties: PathPenalties | None = None
        self.random = np.random.Generator(np.random.Philox(key=seed))

    def judge(self, logits: Rows, proposal: Proposal, position: int) -> Verdict:
        tokens: list[int] = []
        distributions: list[F64] = []
        path: list[int] = []
        node: int | None = -1
        while node is not None:
            ours = distribution(logits[node + 1], self.sampling)
            distributions.append(ours)
            node, left = self._first_that_stands(ours, proposal, proposal.children(node))
            if node is None:
                tokens.append(self._draw(left))
            else:
                tokens.append(proposal.tokens[node])
                path.append(node)
        return Verdict(tokens, distributions, path)

    def guesses(
        self,
        logits: F32,
        position: int,
        least: float,
        most: int,
        first: int | None = None,
        sharpness: float = SHARPNESS,
    ) -> Guesses:
        """Draws without replacement, as many as the distribution has tokens that are likely enough.

        A draw's chance is taken to be the share of the token that has its rank. Since nothing that was drawn may be
        left out later, a second one must be likely by itself.
        """
        shares = distribution(logits, self.sampling)
        ranked = -np.partition(-shares, min(most, len(shares) - 1))
        chances = np.sort(ranked[:most])[::-1]
        chances = chances[(chances > 0) & (chances >= least) & (chances >= min(LEAST_SIBLING, chances[0]))]
        if not len(chances):
            return Guesses([], [], shares)
        left = shares if first is None else _without(shares, [first])
        tokens = [] if first is None else [first]
        while len(tokens) < len(chances) and left.any():
            tokens.append(self._draw(left))
            left = _without(shares, tokens)
        return Guesses(tokens, chances[: len(tokens)].tolist(), shares)

    def ranking(self, logits: F32, position: int, tokens: I64 | None = None) -> F64:
        with np.errstate(divide="ignore"):  # what the sampling leaves out
            scores: F64 = np.log(distribution(logits, self.sampling))
        return scores

    def _first_that_stands(self, ours: F64, proposal: Proposal, siblings: Sequence[int]) -> tuple[int | None, F64]:
        """The sibling that is accepted, or None; and what is then left of our distribution to draw from."""
        left = ours
        used: list[int] = []
        for node in siblings:
            token = proposal.tokens[node]
            theirs = _without(proposal.distributions[node], used) if proposal.distributions else None
            theirs = _certain(token, len(ours)) if theirs is None else theirs
            if self.random.random() * theirs[token] * left.sum() < left[token]:
                return node, left
            both = min(len(left), len(theirs))
            rest = left / left.sum()
            rest[:both] = np.maximum(rest[:both] - theirs[:both], 0)
            left = rest if rest.any() else left  # nothing is left where rounding made p equal q
            used.append(token)
        return None, left

    def _draw(self, weights: F64) -> int:
        cumulative = weights.cumsum()
        token = int(cumulative.searchsorted(self.random.random() * cumulative[-1], side="right"))
        return min(token, int(weights.nonzero()[0][-1]))  # the product may round up to the last sum


def _certain(token: int, vocab_size: int) -> F64:
    shares = np.zeros(vocab_size)
    shares[token] = 1
    return shares


def _without(theirs: F64, used: Sequence[int]) -> F64:
    """A distribution of which some tokens have been drawn: the others, summing to one again."""
    if not used:
        return theirs
    rest = theirs.copy()
    rest[list(used)] = 0
    total = rest.sum()
    return rest / total if total else rest
