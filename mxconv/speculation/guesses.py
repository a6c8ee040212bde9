"""A model's guesses at one position, and how often they are right, learned from what was verified."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, nan

import numpy as np

from mxconv.arrays import F32, F64, I32
from mxconv.speculation.proposal import Proposal
from mxconv.text.distribution import least_of_largest

SHARPNESS = 1.5
"""A model that drafts for another agrees with it as if its logits were this many times as large, until more is known.

Measured: 1.2 to 2 with a 4-bit copy (stories260K and llama2xs, greedily and at temperatures 0.6 and 1), 2 to 3 with a
distilled draft.
"""


@dataclass(frozen=True)
class Guesses:
    """Different tokens, the likeliest first, perhaps none."""

    tokens: list[int]
    chances: list[float]  # of each to be chosen
    distribution: F64 | None = None  # (vocab_size,) from which the tokens were drawn without replacement


def at_least(least: float, tokens: list[int], chances: list[float]) -> Guesses:
    """Those of the tokens, likeliest first, that are likely enough."""
    count = sum(chance > 0 and chance >= least for chance in chances)  # of a NaN neither holds
    return Guesses(tokens[:count], chances[:count])


def most_likely(logits: F32, sharpness: float, least: float, most: int) -> Guesses:
    """At most `most` tokens that are at least so likely under the softmax of sharper logits, (vocab_size,) float32.

    The likeliest come first, of equal ones the lower token.
    """
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):  # of logits that are infinite or NaN
        highest = logits.max()
        (near,) = (logits >= highest - np.float32(NEGLIGIBLE / sharpness)).nonzero()  # none where there is a NaN
        weights = np.exp((logits[near] - highest) * np.float32(sharpness))
        total = weights.sum()
        floor = max(least * total, LEAST_WEIGHT)
        if least * FEW < 1 and len(near):  # which many may reach
            floor = max(floor, least_of_largest(weights, most))
        (able,) = (weights >= floor).nonzero()
    best = able[np.argsort(-weights[able], kind="stable")][:most]
    return Guesses(near[best].tolist(), (weights[best] / total).tolist())


NEGLIGIBLE = 16.0  # a logarithm: 50,000 tokens that are so much less likely change a chance by half a percent
LEAST_WEIGHT = np.finfo(np.float32).tiny
FEW = 512  # logits that are sorted at once


def likeliest(logits: F32, num_candidates: int) -> tuple[I32, F32]:
    """The greatest logits of each row, best first, the lower token where equal, with their softmax probabilities.

    Where fewer than `num_candidates` can come, token 0 takes the other places, with probability 0.
    """
    tokens = np.zeros((len(logits), num_candidates), np.int32)
    probabilities = np.zeros((len(logits), num_candidates), np.float32)
    for row, its_logits in enumerate(logits):
        guesses = most_likely(its_logits, 1.0, 0.0, num_candidates)
        tokens[row, : len(guesses.tokens)] = guesses.tokens
        probabilities[row, : len(guesses.tokens)] = guesses.chances
    return tokens, probabilities


LEAST, MOST = 1.0, 6.0
GAIN = 0.02  # of the logarithm, for a token that was accepted though its chance was 0


class Sharpness:
    """The factor of a draft's logits with which its likeliest tokens are accepted as often as it predicts.

    Without it trees would stop short of depths that pay: the level above takes the likeliest token more often than a
    softmax says.
    """

    def __init__(self) -> None:
        self.value = SHARPNESS

    def learn(self, proposal: Proposal, tokens: Sequence[int]) -> None:
        """Compare the likeliest token of every place on the chosen path with what was chosen there.

        Args:
            proposal: the draft's tree, no chain; nothing is learned from one that was drawn at random.
            tokens: that the level above chose: of the accepted path, and one more.
        """
        if proposal.distributions or not proposal.probabilities:
            return
        surprise, node = 0.0, -1
        for token in tokens:
            children = proposal.children(node)
            if not children:
                break
            surprise += (proposal.tokens[children[0]] == token) - proposal.probabilities[children[0]]
            node = next((child for child in children if proposal.tokens[child] == token), -1)
            if node < 0:
                break
        self.value = min(max(self.value * exp(GAIN * surprise), LEAST), MOST)


def top_probability(logits: F32) -> float:
    """Softmax probability of the most likely token, (vocab_size,) in; NaN where a logit is NaN or one is infinite."""
    return next(iter(most_likely(logits, 1.0, 0.0, 1).chances), nan)
