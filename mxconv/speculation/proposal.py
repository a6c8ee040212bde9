"""What a draft is: anything that can guess how a context goes on.

A model's guesses at one position come with how often they are right, learned from what was verified.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import exp, nan

import numpy as np

from mxconv.arrays import F32, F64, I32
from mxconv.engine.tree import Tree, TreeLimits, depths_of
from mxconv.speculation.statistics import LevelStatistics
from mxconv.text.distribution import least_of_largest


@dataclass(frozen=True)
class Proposal:
    """A tree of tokens that may follow a context; tokens without parents are a chain, one after another.

    Args:
        tokens: of the nodes, parents before children.
        distributions: (vocab_size,) float64 each, what token i was drawn from. Empty where tokens were not drawn at
            random; a verifier then takes each for certain.
        probabilities: each node's own, after its parent. Empty where the draft is no model of the same tokens.
        parents: each node's parent among the nodes, or -1 after the context. Siblings carry different tokens, the
            likelier first.
    """

    tokens: list[int]
    distributions: list[F64] = field(default_factory=list)
    probabilities: list[float] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.parents:
            object.__setattr__(self, "parents", list(range(-1, len(self.tokens) - 1)))

    @cached_property
    def is_branched(self) -> bool:
        """Whether it is more than a chain."""
        return any(parent != node - 1 for node, parent in enumerate(self.parents))

    @cached_property
    def depths(self) -> list[int]:
        """The number of nodes above each node."""
        return depths_of(self.parents)

    @cached_property
    def widths(self) -> list[int]:
        """The number of nodes at each depth."""
        counts = Counter(self.depths)
        return [counts[depth] for depth in range(len(counts))]

    @property
    def depth(self) -> int:
        """Tokens of the longest path."""
        return len(self.widths)

    def rows(self, num_before: int) -> Tree:
        """The rows of a pass over `num_before` tokens of the context, at least one, and the proposal after them."""
        return Tree([*range(-1, num_before - 1), *(num_before + parent for parent in self.parents)])

    @property
    def chances(self) -> list[float]:
        """The chance of each node's path; empty where the draft has no probabilities."""
        chances: list[float] = []
        for probability, parent in zip(self.probabilities, self.parents, strict=False):
            chances.append(probability * (1.0 if parent < 0 else chances[parent]))
        return chances

    def within(self, vocab_size: int, most_depth: int) -> "Proposal":
        """The tree without the nodes that are too deep, or whose token or ancestor a vocabulary lacks."""
        pairs = zip(self.tokens, self.depths, strict=True)
        return self.where([0 <= token < vocab_size and depth < most_depth for token, depth in pairs])

    def where(self, kept: Sequence[bool]) -> "Proposal":
        """The same without nodes that are not kept, and those below them."""
        if all(kept):
            return self
        places: dict[int, int] = {-1: -1}
        for node, parent in enumerate(self.parents):
            if kept[node] and parent in places:
                places[node] = len(places) - 1
        nodes = list(places)[1:]
        return Proposal(
            [self.tokens[node] for node in nodes],
            [self.distributions[node] for node in nodes] if self.distributions else [],
            [self.probabilities[node] for node in nodes] if self.probabilities else [],
            [places[self.parents[node]] for node in nodes],
        )

    def after(self, tokens: list[int]) -> "Proposal":
        """The same below a chain of tokens that are certain."""
        count = len(tokens)
        return Proposal(
            [*tokens, *self.tokens],
            probabilities=[*[1.0] * count, *self.probabilities] if self.probabilities or not self.tokens else [],
            parents=[*range(-1, count - 1), *(count + parent for parent in self.parents)],
        )

    def children(self, node: int) -> list[int]:
        """The nodes after a node, or after the context where it is -1."""
        return [child for child, parent in enumerate(self.parents) if parent == node]

    def path(self, node: int) -> list[int]:
        """The tokens from the context down to a node, its own included; none where it is -1."""
        tokens: list[int] = []
        while node >= 0:
            tokens.append(self.tokens[node])
            node = self.parents[node]
        return tokens[::-1]


NOTHING = Proposal([])


class Draft(ABC):
    """A level that can propose: a look-up, a reader of hidden states, or a model, perhaps with drafts of its own."""

    statistics: LevelStatistics

    @abstractmethod
    def propose(self, context: Sequence[int], limits: TreeLimits) -> Proposal:
        """The likeliest tree below a context, of a chain's limits a chain; none where confidence is low.

        Args:
            context: all tokens so far, at least one. The next context may differ from its continuation.
            limits: of the proposal. A draft that knows no branches may make a chain of any.
        """

    def num_unread(self, context: Sequence[int]) -> int:
        """The number of tokens of a context that it has to read before it can propose."""
        return 0

    def observe(self, context: Sequence[int], proposal: Proposal, logits: F32) -> None:  # noqa: B027 - drafts of mxconv learn nothing of it
        """See what the level above evaluated, after every verification: for plug-ins, whose tables fill by it.

        Args:
            context: all tokens before the proposal, at least one.
            proposal: what was judged, rejected tokens included; another draft may have made it.
            logits: (len(proposal.tokens) + 1, vocab_size): the first row follows the context, row i + 1 node i.
        """

    def learn(self, limits: TreeLimits, proposal: Proposal, tokens: Sequence[int]) -> None:  # noqa: B027
        """See what became of a proposal of its own, made within limits: the tokens that the level above chose."""


SHARPNESS = 2.5
"""The 4-bit copy of a level agrees with it as if its logits were this many times as large, until more is known.

Measured: 1.2 to 2 with models of a million weights (stories260K and llama2xs), above 2.3 with one of 1.5 billion.
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
GAIN = 0.05  # of the logarithm, for a token that was accepted though its chance was 0


class Sharpness:
    """The factor of a draft's logits with which its likeliest tokens are accepted as often as it predicts.

    Without it trees, and chains with a floor, would stop short of depths that pay: the level above takes the likeliest
    token more often than a softmax says.
    """

    def __init__(self, value: float = SHARPNESS) -> None:
        self.value = value

    def learn(self, proposal: Proposal, tokens: Sequence[int]) -> None:
        """Compare the likeliest token of every place on the chosen path with what was chosen there.

        Args:
            proposal: whose chances are sharpened; nothing is learned from one that was drawn at random.
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


def top_probability(logits: F32, sharpness: float = 1.0) -> float:
    """Softmax probability of the most likely token, (vocab_size,) in; NaN where a logit is NaN or one is infinite."""
    return next(iter(most_likely(logits, sharpness, 0.0, 1).chances), nan)
