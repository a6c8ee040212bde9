"""What drafts that read hidden states have in common: a pass a token, or a pass a depth of a tree."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from mxconv.arrays import F32
from mxconv.engine.states import Reads
from mxconv.engine.tree import GrownTree, Tree, TreeLimits
from mxconv.speculation.acceptance import limits_at_once
from mxconv.speculation.guesses import SHARPNESS
from mxconv.speculation.loaded_level import Listener
from mxconv.speculation.proposal import Proposal
from mxconv.speculation.trees import Evaluate, GoesOn, grow_by_passes, least_chances, of_grown


class ReadingDraft(ABC):
    """A draft that begins after a context whose states it has read, and evaluates what follows."""

    def __init__(self, reads: Reads, listener: Listener) -> None:
        listener.session.states.want(reads)
        self.statistics = listener.statistics
        self.sharpness = listener.sharpness
        self.listener = listener
        self.num_wanted = 0  # tokens of a path of the proposal that begins

    @abstractmethod
    def most_tokens(self, context: Sequence[int]) -> int:
        """The number of tokens that it can propose after a context; 0 without the states of all tokens but the last."""

    @abstractmethod
    def begin(self, context: Sequence[int]) -> F32:
        """The logits (1, vocab_size) after a context of which `most_tokens` is not 0."""

    @abstractmethod
    def evaluate(self, tokens: Sequence[int], tree: Tree) -> F32:
        """(num_rows, vocab_size): the logits of a tree's new rows after the context, all of one depth, the next."""

    def propose(self, context: Sequence[int], num_tokens: int, floor: float | None = None) -> Proposal:
        """A chain, a pass a token."""
        proposal = Proposal([])
        if not (most := min(num_tokens, self.most_tokens(context))):
            return proposal
        self.num_wanted = most
        limits = TreeLimits(most, [0.0] * most, *self._least(floor), 1.0, 1)
        if (grown := self._grown_at_once(context, limits)) is not None:
            return Proposal(grown.tokens, probabilities=grown.probabilities)
        (logits, evaluate), chance, goes_on = self._begun(context), 1.0, self._goes_on(floor)
        for depth in range(most):
            if depth:
                logits = evaluate(proposal.tokens[-1:], Tree(range(-1, depth - 1), depth - 1))[0]
            guess = self.listener.acceptance.guesses(logits, len(context) + depth, 0.0, 1, SHARPNESS)
            if not guess.tokens:
                break
            proposal.tokens.extend(guess.tokens)
            if guess.distribution is not None:
                proposal.distributions.append(guess.distribution)
            own_chance = self.listener.acceptance.chance(logits, len(context) + depth)
            proposal.probabilities.append(own_chance)
            chance *= own_chance
            if not goes_on(chance, own_chance):
                break
        return proposal

    def grow(
        self, context: Sequence[int], most_depth: int, floors: Sequence[float], floor: float | None = None
    ) -> Proposal:
        """A tree, a pass a depth."""
        depth = min(most_depth, self.most_tokens(context))
        if not floors or depth < 1:
            return Proposal([], parents=[])
        self.num_wanted = depth
        limits = TreeLimits(depth, floors, *self._least(floor), self.sharpness.value)
        if (grown := self._grown_at_once(context, limits)) is not None:
            return grown
        first, evaluate = self._begun(context)
        return self.grown(first, evaluate, len(context), depth, floors, self._goes_on(floor))

    def grown(
        self, first: F32, evaluate: Evaluate, position: int, depth: int, floors: Sequence[float], goes_on: GoesOn
    ) -> Proposal:
        """The likeliest tree, as `grow_by_passes` takes its arguments."""
        rule, sharpness = self.listener.acceptance, self.sharpness.value
        return grow_by_passes(first, position, evaluate, rule, sharpness, depth, floors, goes_on)[0]

    def grow_at_once(self, context: Sequence[int], limits: TreeLimits) -> GrownTree | None:
        """A tree of the likeliest tokens after a context of which `most_tokens` is not 0; None: pass by pass alone."""
        return None

    def observe(self, context: Sequence[int], proposal: Proposal, logits: F32) -> None:  # noqa: B027 - of no kind
        """The session keeps the states that it reads."""

    def _begun(self, context: Sequence[int]) -> tuple[F32, Evaluate]:
        """The first logits and the passes after them, as the run's rules change them."""
        first: F32 = self.begin(context)[0]
        rules = self.listener.acceptance.rules
        return (first, self.evaluate) if rules is None else rules.passes(context, first, self.evaluate)

    def _grown_at_once(self, context: Sequence[int], limits: TreeLimits) -> Proposal | None:
        by_rule = limits_at_once(self.listener.acceptance, limits, context)
        grown = None if by_rule is None else self.grow_at_once(context, by_rule)
        return None if grown is None else of_grown(grown, limits.floors)[0]

    def _least(self, floor: float | None) -> tuple[float, float]:
        return least_chances(self.listener.confidence, floor)

    def _goes_on(self, floor: float | None) -> GoesOn:
        confidence = self.listener.confidence
        return lambda chance, own_chance: own_chance >= confidence if floor is None else chance >= floor
