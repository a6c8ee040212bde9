"""Rules of acceptance: how a level chooses its own tokens and compares them with its draft's.

    greedy      the most likely token; a proposal is accepted where it is that token
    coupled     a draw whose noise depends on the seed and the position alone; a proposal is accepted where it is
                what the level draws. The output is the same tokens with any hierarchy or none, and drafts that share
                the noise agree more often than two independent draws would
    rejection   Leviathan et al.: accept with probability min(1, p/q), else draw from what is left of p. The output
                has the target's distribution, but other tokens with other drafts

A proposal may be a tree: the walk goes on into the accepted child, and ends where there is none. Under the first two
the level's token at a node is what it would be without any tree. Under rejection the siblings are judged in their
order, each against what those before it left of p and q.

Speculative sampling is in `mxconv/drafts/rejection.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from mxconv.arrays import F32, F64, I64
from mxconv.drafts.guesses import SHARPNESS, Guesses, at_least, likeliest
from mxconv.drafts.path_penalties import PathPenalties, Rows
from mxconv.drafts.proposal import Proposal
from mxconv.text.distribution import Sampling, distribution, greedy, likely_tokens


@dataclass(frozen=True)
class Verdict:
    """The tokens of a round: the accepted ones of the proposal, and one more of the level's own.

    Args:
        tokens: at least one.
        distributions: what each was drawn from, (vocab_size,) float64; empty under rules that draw nothing at random
            or make the draw again wherever it is needed.
        path: the accepted nodes of the proposal, one less than the tokens.
    """

    tokens: list[int]
    distributions: list[F64] = field(default_factory=list)
    path: list[int] = field(default_factory=list)


class Acceptance(Protocol):
    """A rule; one object serves all levels of a hierarchy during one run.

    `penalties` are what levels put their logits through before they hand them to the rule; None where nothing is held
    against tokens.
    """

    penalties: PathPenalties | None

    def judge(self, logits: Rows, proposal: Proposal, position: int) -> Verdict:
        """Judge a proposal.

        Args:
            logits: len(proposal.tokens) + 1 rows of (vocab_size,) float32; the first row follows the context, row i + 1
                node i.
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


def walk(proposal: Proposal, choose: Callable[[int, int], int]) -> Verdict:
    """Follow a level's own choices down the proposal, as far as it has them.

    Args:
        choose: the level's token after a node (-1: the context) at a depth (0: the first proposed place).
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


class GreedyAcceptance:
    """The lowest id among the most likely tokens."""

    def __init__(self) -> None:
        self.penalties: PathPenalties | None = None

    def judge(self, logits: Rows, proposal: Proposal, position: int) -> Verdict:
        return walk(proposal, lambda node, _: int(greedy(logits[node + 1])))

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
        return at_least(least, tokens[0].tolist(), chances[0].tolist())

    def ranking(self, logits: F32, position: int, tokens: I64 | None = None) -> F64:
        return logits.astype(np.float64)


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
        support, shares = likely_tokens(logits, self.sampling)
        return support, self.perturbed(shares, position, support)

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
