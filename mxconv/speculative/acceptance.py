"""Which proposed tokens stand: the rule by which a level chooses its own tokens and compares them with its draft's.

    greedy      the most likely token; a proposal stands where it is that token
    coupled     a draw whose noise depends on the seed and the position alone; a proposal stands where it is what the
                level draws. The output is the same tokens with any hierarchy or none, and drafts that share the noise
                agree more often than two independent draws would
    rejection   Leviathan et al.: accept with probability min(1, p/q), else draw from what is left of p. The output
                has the target's distribution, but other tokens with other drafts

A proposal may be a tree: the walk goes on into the child that stands, and ends where none does. Under the first two the
level's token at a node is what it would be without any tree. Under rejection the siblings are judged in their order,
each against what those before it left of p and q.

Source:
    Greedy and coupled: design §5.3 (Gumbel-max). Rejection: arXiv 2211.17192, Theorem 3.5; arXiv 2302.01318. Siblings:
    recursive rejection sampling of Recursive Speculative Decoding (candidates without replacement).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from mxconv.arrays import F32, F64, I64
from mxconv.model.distribution import Sampling, distribution
from mxconv.model.sampling import greedy
from mxconv.speculative.draft import Proposal
from mxconv.speculative.guesses import SHARPNESS, Guesses
from mxconv.speculative.likeliest import likeliest

LEAST_SIBLING = 0.1  # share of a token for which a further one is drawn
MOST_POSITIONS = 32  # of which the noise is kept: a round's


@dataclass(frozen=True)
class Verdict:
    """The tokens of a round: those of the proposal that stand, and one more of the level's own.

    Args:
        tokens: at least one.
        distributions: what each was drawn from, (vocab_size,) float64; empty under rules that draw nothing at random
            or make the draw again wherever it is needed.
        path: the nodes of the proposal that stand, one less than the tokens.
    """

    tokens: list[int]
    distributions: list[F64] = field(default_factory=list)
    path: list[int] = field(default_factory=list)


class Acceptance(Protocol):
    """A rule; one object serves all levels of a hierarchy during one run."""

    def judge(self, logits: F32, proposal: Proposal, position: int) -> Verdict:
        """Judge a proposal.

        Args:
            logits: (len(proposal.tokens) + 1, vocab_size) float32; the first row follows the context, row i + 1 node i.
            proposal: the draft's guess.
            position: of the first proposed token in the sequence, the prompt counted.
        """
        ...

    def guesses(
        self,
        logits: F32,
        position: int,
        least: float,
        most: int,
        first: int | None = None,
        sharpness: float = SHARPNESS,
    ) -> Guesses:
        """What a draft with these logits says at one position: several tokens, as siblings of a tree.

        How many there are is decided before any of them is drawn.

        Args:
            logits: (vocab_size,) float32.
            position: in the sequence, the prompt counted.
            least: a token is less likely than this to be chosen and is left out.
            most: tokens.
            first: a token that the draft has chosen there already by this rule, and that is the first.
            sharpness: how many times as large the logits are to be taken; what is drawn at random heeds it not.
        """
        ...

    def ranking(self, logits: F32, position: int, tokens: I64 | None = None) -> F64:
        """What decides between tokens: the greatest is chosen, minus infinity never is.

        A draft that ranks by it what it believes the logits to be hears the noise of the rule, where there is one that
        it may hear. The order is then that of drawing without replacement, and its softmax the chance that a level is
        right to choose each whose own logits differ from the draft's by standard Gumbel noise once more.

        Args:
            logits: (n,) float32, of all tokens or of some, as far as they are known.
            position: of the token to be chosen in the sequence, the prompt counted.
            tokens: (n,) ids of which the logits are; None where they are of all, in order.
        """
        ...


class GreedyAcceptance:
    """The lowest id among the most likely tokens."""

    def judge(self, logits: F32, proposal: Proposal, position: int) -> Verdict:
        choices = greedy(logits)
        return _walk(proposal, lambda node, _: int(choices[node + 1]))

    def guesses(
        self,
        logits: F32,
        position: int,
        least: float,
        most: int,
        first: int | None = None,
        sharpness: float = SHARPNESS,
    ) -> Guesses:
        tokens, chances = likeliest(logits[None] * np.float32(sharpness), min(most, len(logits)))
        return _at_least(least, tokens[0].tolist(), chances[0].tolist())

    def ranking(self, logits: F32, position: int, tokens: I64 | None = None) -> F64:
        return logits.astype(np.float64)


class CoupledAcceptance:
    """Draws with Gumbel noise keyed by seed and position.

    Args:
        sampling: how logits become a distribution.
        seed: any integer of 64 bits.
    """

    def __init__(self, sampling: Sampling, seed: int) -> None:
        self.sampling = sampling
        self.seed = seed
        self._uniform: dict[int, F64] = {}  # position -> numbers of the tokens from 0 on, for some positions

    def judge(self, logits: F32, proposal: Proposal, position: int) -> Verdict:
        return _walk(proposal, lambda node, depth: self.draw(logits[node + 1], position + depth))

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
        return _at_least(least, support[best].tolist(), (weights[best] / weights.sum()).tolist())

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


def _at_least(least: float, tokens: list[int], chances: list[float]) -> Guesses:
    """Those of the tokens, likeliest first, that are likely enough."""
    count = sum(chance > 0 and chance >= least for chance in chances)  # of a NaN neither holds
    return Guesses(tokens[:count], chances[:count])


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


def _walk(proposal: Proposal, choose: Callable[[int, int], int]) -> Verdict:
    """Follow a level's own choices down the proposal, as far as it has them.

    Args:
        choose: the level's token behind a node (-1: the context) at a depth (0: the first proposed place).
    """
    tokens: list[int] = []
    path: list[int] = []
    node: int | None = -1
    while node is not None:
        tokens.append(choose(node, len(tokens)))
        node = next((child for child in proposal.children(node) if proposal.tokens[child] == tokens[-1]), None)
        if node is not None:
            path.append(node)
    return Verdict(tokens, path=path)
