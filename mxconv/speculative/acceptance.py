"""Which proposed tokens stand: the rule by which a level chooses its own tokens and compares them with its draft's.

    greedy      the most likely token; a proposal stands where it is that token
    coupled     a draw whose noise depends on the seed and the position alone; a proposal stands where it is what the
                level draws. The output is the same tokens with any hierarchy or none, and drafts that share the noise
                agree more often than two independent draws would
    rejection   Leviathan et al.: accept with probability min(1, p/q), else draw from what is left of p. The output
                has the target's distribution, but other tokens with other drafts

Source:
    Greedy and coupled: design §5.3 (Gumbel-max). Rejection: arXiv 2211.17192, Theorem 3.5; arXiv 2302.01318.
"""

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from mxconv.arrays import F32, F64
from mxconv.model.distribution import Sampling, distribution
from mxconv.model.sampling import greedy
from mxconv.speculative.draft import Proposal


@dataclass(frozen=True)
class Verdict:
    """The tokens of a round: those of the proposal that stand, and one more of the level's own.

    Args:
        tokens: at least one.
        distributions: what each was drawn from, (vocab_size,) float64; empty under rules that draw nothing at random
            or make the draw again wherever it is needed.
    """

    tokens: list[int]
    distributions: list[F64] = field(default_factory=list)


class Acceptance(Protocol):
    """A rule; one object serves all levels of a hierarchy during one run."""

    def judge(self, logits: F32, proposal: Proposal, position: int) -> Verdict:
        """Judge a proposal.

        Args:
            logits: (len(proposal.tokens) + 1, vocab_size) float32; row i follows i proposed tokens.
            proposal: the draft's guess.
            position: of the first proposed token in the sequence, the prompt counted.
        """
        ...


class GreedyAcceptance:
    """The lowest id among the most likely tokens."""

    def judge(self, logits: F32, proposal: Proposal, position: int) -> Verdict:
        return Verdict(_while_equal([int(token) for token in greedy(logits)], proposal.tokens))


class CoupledAcceptance:
    """Draws with Gumbel noise keyed by seed and position.

    Args:
        sampling: how logits become a distribution.
        seed: any integer of 64 bits.
    """

    def __init__(self, sampling: Sampling, seed: int) -> None:
        self.sampling = sampling
        self.seed = seed

    def judge(self, logits: F32, proposal: Proposal, position: int) -> Verdict:
        tokens = []
        for index, row in enumerate(logits):
            tokens.append(self.draw(row, position + index))
            if index < len(proposal.tokens) and tokens[-1] != proposal.tokens[index]:
                break
        return Verdict(tokens)

    def draw(self, logits: F32, position: int) -> int:
        """The token of one position: argmax of log-probability plus noise, (vocab_size,) float32 in."""
        shares = distribution(logits, self.sampling)
        (support,) = shares.nonzero()
        # a token's noise is that of its id in one stream, so models with padded vocabularies hear the same
        key = np.array([self.seed, position], np.uint64)
        noise = np.random.Generator(np.random.Philox(key=key)).random(support[-1] + 1)[support]
        with np.errstate(divide="ignore"):  # a noise of 0, once in 2^53, is minus infinity: never chosen
            return int(support[np.argmax(np.log(shares[support]) - np.log(-np.log(noise)))])


class RejectionAcceptance:
    """Speculative sampling.

    Args:
        sampling: how logits become a distribution.
        seed: of all draws of the run.
    """

    def __init__(self, sampling: Sampling, seed: int) -> None:
        self.sampling = sampling
        self.random = np.random.Generator(np.random.Philox(key=seed))

    def judge(self, logits: F32, proposal: Proposal, position: int) -> Verdict:
        tokens: list[int] = []
        distributions: list[F64] = []
        for index, row in enumerate(logits):
            ours = distribution(row, self.sampling)
            distributions.append(ours)
            if index == len(proposal.tokens):
                tokens.append(self._draw(ours))
                break
            token = proposal.tokens[index]
            theirs = proposal.distributions[index] if proposal.distributions else _certain(token, len(ours))
            if self.random.random() * theirs[token] < ours[token]:
                tokens.append(token)
                continue
            left = ours.copy()
            both = min(len(ours), len(theirs))
            left[:both] = np.maximum(ours[:both] - theirs[:both], 0)
            tokens.append(self._draw(left if left.any() else ours))  # nothing is left where rounding made p equal q
            break
        return Verdict(tokens, distributions)

    def _draw(self, weights: F64) -> int:
        cumulative = weights.cumsum()
        token = int(cumulative.searchsorted(self.random.random() * cumulative[-1], side="right"))
        return min(token, int(weights.nonzero()[0][-1]))  # the product may round up to the last sum


def _certain(token: int, vocab_size: int) -> F64:
    shares = np.zeros(vocab_size)
    shares[token] = 1
    return shares


def _while_equal(choices: list[int], proposed: list[int]) -> list[int]:
    """The choices up to and with the first that is not what was proposed."""
    for index, token in enumerate(proposed):
        if token != choices[index]:
            return choices[: index + 1]
    return choices
