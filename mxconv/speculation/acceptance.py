"""Rules of acceptance: how a level chooses its own tokens and compares them with its draft's.

    greedy      the most likely token; a proposal is accepted where it is that token
    coupled     a draw whose noise depends on the seed and the position alone; a proposal is accepted where it is
                what the level draws. The output is the same tokens with any hierarchy or none, and drafts with the
                same noise agree more often than two independent draws would
    rejection   speculative sampling: accept with probability min(1, p/q), else draw from what is left of p. The output
                has the target's distribution, but other tokens with other drafts

A fourth, `block`, judges whole paths: block_verification.py.

A proposal may be a tree: verification continues with the accepted child, and ends where there is none. Under the first
two the level's token at a node is what it would be without any tree. Under rejection siblings are judged in their
order, each against what those before it left of p and q.

Source:
    Rejection: arXiv 2211.17192, Theorem 3.5; arXiv 2302.01318. Siblings: recursive rejection sampling of Recursive
    Speculative Decoding (candidates without replacement).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from mxconv.arrays import F32, F64, I64
from mxconv.engine.tree import TreeDraws, TreeLimits
from mxconv.speculation.proposal import Guesses, Proposal, at_least, most_likely, top_probability
from mxconv.text.distribution import Sampling, distribution, greedy, largest_of, likely_tokens

if TYPE_CHECKING:
    from mxconv.speculation.path_rules import PathRules, Rows

MOST_POSITIONS = 32  # of which the noise is kept: a round's
UNLIKELY, FAVOURED = 10.0, 1 - 2**-10  # a logarithm; noise above which even such a token is looked at
LEAST_SIBLING = 0.1  # share of a token for which a further one is drawn


@dataclass(frozen=True)
class Verdict:
    """The tokens of a round: the accepted ones of the proposal, and one more of the level's own.

    Args:
        tokens: at least one.
        distributions: what each was drawn from, (vocab_size,) float64; empty where draws can be repeated.
        path: the accepted nodes of the proposal, one less than the tokens.
    """

    tokens: list[int]
    distributions: list[F64] = field(default_factory=list)
    path: list[int] = field(default_factory=list)


class Acceptance(ABC):
    """A rule; one object serves all levels of a hierarchy during one run.

    Levels apply `rules`, where there are some, to their logits before they pass them to it.
    """

    rules: "PathRules | None" = None
    draws_what_is_left = False  # where a sibling was rejected: then each is drawn, and must not be chosen otherwise

    @abstractmethod
    def judge(self, logits: "Rows", proposal: Proposal, position: int) -> Verdict:
        """Judge a proposal.

        Args:
            logits: len(proposal.tokens) + 1 rows of (vocab_size,) float32; the first row follows the context, row i + 1
                node i.
            proposal: the draft's guess.
            position: of the first proposed token in the sequence, the prompt counted.
        """

    @abstractmethod
    def guesses(
        self, logits: F32, position: int, least: float, most: int, sharpness: float, first: int | None = None
    ) -> Guesses:
        """The tokens that a draft with these logits proposes at one position, as siblings of a tree.

        How many there are is decided before any of them is drawn.

        Args:
            logits: (vocab_size,) float32.
            position: in the sequence, the prompt counted.
            least: tokens that are less likely than this to be chosen are left out.
            most: tokens.
            sharpness: factor of the logits; draws at random ignore it.
            first: a token that the draft has already chosen there by this rule, and that is the first.
        """

    def chance(self, logits: F32, position: int, sharpness: float) -> float:
        """The chance that the level above chooses what a draft with these logits, (vocab_size,) float32, chooses."""
        return top_probability(logits, sharpness)

    def at_once(self, limits: TreeLimits, context: Sequence[int]) -> TreeLimits | None:
        """The limits of a tree below a context that is grown in one call by this rule; None where it cannot be.

        A constraint has to be queried for every path.
        """
        if self.rules is None:
            return limits
        if self.rules.mask is not None:
            return None
        penalties = self.rules.penalties
        return replace(limits, penalties=None if penalties is None else penalties.after(context))

    @abstractmethod
    def ranking(self, logits: F32, position: int, tokens: I64 | None = None) -> F64:
        """Scores of tokens: the greatest is chosen, minus infinity never is.

        They include the noise of a coupled rule, so their order is that of draws without replacement. Their softmax is
        the chance of each token where the level's own logits differ from these by standard Gumbel noise once more.

        Args:
            logits: (n,) float32, of all tokens or of some, as far as they are known.
            position: of the token to be chosen in the sequence, the prompt counted.
            tokens: (n,) ids of which the logits are; None where they are of all, in order.
        """


def walk(proposal: Proposal, choose: Callable[[int, int], int]) -> Verdict:
    """Follow a level's own choices, after a node (-1: the context) and at a depth from 0, down the proposal."""
    tokens: list[int] = []
    path: list[int] = []
    node: int | None = -1
    while node is not None:
        tokens.append(choose(node, len(tokens)))
        node = next((child for child in proposal.children(node) if proposal.tokens[child] == tokens[-1]), None)
        if node is not None:
            path.append(node)
    return Verdict(tokens, path=path)


class GreedyAcceptance(Acceptance):
    """The lowest id among the most likely tokens."""

    def judge(self, logits: "Rows", proposal: Proposal, position: int) -> Verdict:
        return walk(proposal, lambda node, _: int(greedy(logits[node + 1])))

    def guesses(
        self, logits: F32, position: int, least: float, most: int, sharpness: float, first: int | None = None
    ) -> Guesses:
        return most_likely(logits, sharpness, least, most)

    def ranking(self, logits: F32, position: int, tokens: I64 | None = None) -> F64:
        return logits.astype(np.float64)


class CoupledAcceptance(Acceptance):
    """Draws with Gumbel noise keyed by seed, any integer of 64 bits, and position."""

    def __init__(self, sampling: Sampling, seed: int) -> None:
        self.sampling = sampling
        self.seed = seed
        self._uniform: dict[int, F64] = {}  # position -> numbers of the tokens from 0 on, for some positions

    def judge(self, logits: "Rows", proposal: Proposal, position: int) -> Verdict:
        return walk(proposal, lambda node, depth: self.draw(logits[node + 1], position + depth))

    def draw(self, logits: F32, position: int) -> int:
        """The token of one position: argmax of log-probability plus noise, (vocab_size,) float32 in."""
        support, scores = self._scores(logits, position)
        return int(support[np.argmax(scores)])

    def guesses(
        self, logits: F32, position: int, least: float, most: int, sharpness: float, first: int | None = None
    ) -> Guesses:
        support, scores = self._scores(logits, position)
        best = np.argpartition(-scores, min(most, len(scores) - 1))[:most]
        best = best[np.argsort(-scores[best], kind="stable")]
        with np.errstate(under="ignore"):
            weights = np.exp((scores - scores[best[0]]) * sharpness)
        return at_least(least, support[best].tolist(), (weights[best] / weights.sum()).tolist())

    def chance(self, logits: F32, position: int, sharpness: float) -> float:
        return self.guesses(logits, position, 0.0, 1, sharpness).chances[0]

    def at_once(self, limits: TreeLimits, context: Sequence[int]) -> TreeLimits | None:
        found = super().at_once(limits, context)
        return None if found is None else replace(found, draws=TreeDraws(self.sampling, self.seed, len(context)))

    def ranking(self, logits: F32, position: int, tokens: I64 | None = None) -> F64:
        return self._perturbed(distribution(logits, self.sampling), position, tokens)

    def _scores(self, logits: F32, position: int) -> tuple[I64, F64]:
        """The tokens that may be drawn, ascending, and their scores; none that can be first is left out."""
        if self.sampling.keeps_all:
            return self._best_of_all(logits, position)
        support, shares = likely_tokens(logits, self.sampling)
        return support, self._perturbed(shares, position, support)

    def _best_of_all(self, logits: F32, position: int) -> tuple[I64, F64]:
        """The likely tokens, ascending, those that the noise favours, and their scores but for a constant.

        All others score less than `bound`: where the best one does too, which never happens in practice, all are taken.
        """
        largest, temperature = largest_of(logits), self.sampling.temperature
        uniform = self._uniform_of(position, logits.size)[: logits.size]
        with np.errstate(over="ignore", divide="ignore"):  # a noise of 0, once in 2^53, is minus infinity
            least = np.float32(largest - UNLIKELY * temperature)
            kept = np.flatnonzero((logits >= least) | (uniform > FAVOURED))
            bound = (np.float64(least) - largest) / temperature - np.log(-np.log(FAVOURED))
            for support in (kept, np.arange(logits.size)):
                exponents = (logits[support].astype(np.float64) - largest) / temperature
                scores: F64 = exponents - np.log(-np.log(uniform[support]))
                if scores.max() >= bound:
                    break
        return support, scores

    def _perturbed(self, shares: F64, position: int, tokens: I64 | None) -> F64:
        """Log-probability plus the noise of a position, minus infinity of a probability of 0."""
        ids = np.arange(len(shares)) if tokens is None else tokens
        uniform = self._uniform_of(position, int(ids.max()) + 1)[ids]
        with np.errstate(divide="ignore"):  # a noise of 0, once in 2^53, is minus infinity: never chosen
            scores: F64 = np.log(shares) - np.log(-np.log(uniform))
        return scores

    def _uniform_of(self, position: int, count: int) -> F64:
        """At least `count` numbers; draft and target take the same ones of a position."""
        known = self._uniform.get(position)
        if known is None or len(known) < count:
            # a token's noise is that of its id in one stream, so models with padded vocabularies have the same
            key = np.array([self.seed, position], np.uint64)
            known = np.random.Generator(np.random.Philox(key=key)).random(count)
            self._uniform.pop(position, None)
            while len(self._uniform) >= MOST_POSITIONS:
                del self._uniform[next(iter(self._uniform))]
            self._uniform[position] = known
        return known


class RejectionAcceptance(Acceptance):
    """Speculative sampling: the target's distribution, by accepting and drawing from what is left."""

    draws_what_is_left = True

    def __init__(self, sampling: Sampling, seed: int) -> None:
        self.sampling = sampling
        self.random = np.random.Generator(np.random.Philox(key=seed))

    def judge(self, logits: "Rows", proposal: Proposal, position: int) -> Verdict:
        verdict, node = Verdict([]), -1
        while True:
            ours = distribution(logits[node + 1], self.sampling)
            verdict.distributions.append(ours)
            accepted, left = self._first_accepted(ours, proposal, proposal.children(node))
            if accepted is None:
                verdict.tokens.append(self._draw(left))
                return verdict
            node = accepted
            verdict.tokens.append(proposal.tokens[node])
            verdict.path.append(node)

    def guesses(
        self, logits: F32, position: int, least: float, most: int, sharpness: float, first: int | None = None
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

    def at_once(self, limits: TreeLimits, context: Sequence[int]) -> TreeLimits | None:
        """None: what siblings are drawn from depends on those before them."""
        return None

    def ranking(self, logits: F32, position: int, tokens: I64 | None = None) -> F64:
        with np.errstate(divide="ignore"):  # what the sampling leaves out
            scores: F64 = np.log(distribution(logits, self.sampling))
        return scores

    def _first_accepted(self, ours: F64, proposal: Proposal, siblings: Sequence[int]) -> tuple[int | None, F64]:
        """The sibling that is accepted, or None; and what is then left of our distribution to draw from."""
        left = ours
        used: list[int] = []
        for node in siblings:
            token, theirs = proposal.tokens[node], drawn_from(proposal, node, used, len(ours))
            if self.random.random() * theirs[token] * left.sum() < left[token]:
                return node, left
            rest = excess(left / left.sum(), theirs)
            left = rest if rest.any() else left  # nothing is left where rounding made p equal q
            used.append(token)
        return None, left

    def _draw(self, weights: F64) -> int:
        cumulative = weights.cumsum()
        token = int(cumulative.searchsorted(self.random.random() * cumulative[-1], side="right"))
        return min(token, int(weights.nonzero()[0][-1]))  # the product may round up to the last sum


def drawn_from(proposal: Proposal, node: int, used: Sequence[int], vocab_size: int) -> F64:
    """The distribution of a node's token where those of some siblings, `used`, were drawn before it."""
    if proposal.distributions:
        return _without(proposal.distributions[node], used)
    theirs = np.zeros(vocab_size)
    theirs[proposal.tokens[node]] = 1  # certain
    return theirs


def excess(ours: F64, theirs: F64) -> F64:
    """What our probabilities, or shares of them, have more than theirs, whose vocabulary may have another size."""
    both = min(len(ours), len(theirs))
    rest = ours.copy()
    rest[:both] = np.maximum(rest[:both] - theirs[:both], 0)
    return rest


def _without(theirs: F64, used: Sequence[int]) -> F64:
    """A distribution of which some tokens have been drawn: the others, summing to one again."""
    if not used:
        return theirs
    rest = theirs.copy()
    rest[list(used)] = 0
    total = rest.sum()
    return rest / total if total else rest
