"""What drafts that read hidden states have in common: a pass a token, or a pass a depth of a tree."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from mxconv.arrays import F32
from mxconv.drafts.acceptance import Acceptance
from mxconv.drafts.guesses import Sharpness, top_probability
from mxconv.drafts.proposal import Proposal
from mxconv.drafts.session import Session
from mxconv.drafts.statistics import LevelStatistics
from mxconv.drafts.trees import Evaluate, grow_by_passes
from mxconv.engine.states import Reads
from mxconv.engine.tree import Tree


@dataclass(frozen=True)
class Listener:
    """The level that a draft of hidden states reads and drafts for, and the rules of the run.

    Args:
        session: of the level that it reads; the states are kept there.
        acceptance: the rule of the run.
        statistics: of the draft; every pass counts.
        vocab_size: ids that both levels have.
        confidence: a chain stops after the first token that is less probable, a tree before a pass none of whose
            nodes is as probable; where no floor is given.
        sharpness: of the draft's guesses.
    """

    session: Session
    acceptance: Acceptance
    statistics: LevelStatistics
    vocab_size: int
    confidence: float
    sharpness: Sharpness


class ReadingDraft(ABC):
    """A draft whose kind says how it begins after a context.

    Args:
        reads: the states that it needs, which are kept from now on.
        listener: for whom.
    """

    def __init__(self, reads: Reads, listener: Listener) -> None:
        listener.session.states.want(reads)
        self.statistics = listener.statistics
        self.listener = listener

    @property
    def sharpness(self) -> Sharpness:
        return self.listener.sharpness

    @abstractmethod
    def most_tokens(self, context: Sequence[int]) -> int:
        """The number of tokens that it can propose after a context; 0 without the states of all tokens but the last."""

    @abstractmethod
    def begin(self, context: Sequence[int]) -> tuple[F32, Evaluate]:
        """The logits (vocab_size,) after a context of which it can say something, and the passes over what follows."""

    def propose(self, context: Sequence[int], num_tokens: int, floor: float | None = None) -> Proposal:
        """A token a pass."""
        proposal = Proposal([])
        if not (most := min(num_tokens, self.most_tokens(context))):
            return proposal
        (logits, evaluate), chance = self._begun(context), 1.0
        for depth in range(most):
            if depth:
                logits = evaluate(proposal.tokens[-1:], Tree(range(-1, depth - 1), depth - 1))[0]
            guess = self.listener.acceptance.guesses(logits, len(context) + depth, 0.0, 1)
            if not guess.tokens:
                break
            proposal.tokens.extend(guess.tokens)
            if guess.distribution is not None:
                proposal.distributions.append(guess.distribution)
            own_chance = top_probability(logits)
            proposal.probabilities.append(own_chance)
            chance *= own_chance
            if not self._goes_on(chance, own_chance, floor):
                break
        return proposal

    def grow(
        self, context: Sequence[int], most_depth: int, floors: Sequence[float], floor: float | None = None
    ) -> Proposal:
        """A pass a depth, over all nodes that may go on."""
        depth = min(most_depth, self.most_tokens(context))
        if not floors or depth < 1:
            return Proposal([], parents=[])
        first, evaluate = self._begun(context)
        return self.grown(first, evaluate, len(context), depth, floors, floor)

    def grown(
        self,
        first: F32,
        evaluate: Evaluate,
        position: int,
        depth: int,
        floors: Sequence[float],
        floor: float | None,
    ) -> Proposal:
        """The likeliest tree, as `grow_by_passes` takes its arguments."""

        def goes_on(chance: float, own_chance: float) -> bool:
            return self._goes_on(chance, own_chance, floor)

        rule, sharpness = self.listener.acceptance, self.sharpness.value
        proposal, _ = grow_by_passes(first, position, evaluate, rule, sharpness, depth, floors, goes_on)
        return proposal

    def observe(self, context: Sequence[int], proposal: Proposal, logits: F32) -> None:  # noqa: B027 - of no kind
        """What it reads is kept with the session."""

    def _begun(self, context: Sequence[int]) -> tuple[F32, Evaluate]:
        """As `begin`, with what the run holds against tokens."""
        first, evaluate = self.begin(context)
        penalties = self.listener.acceptance.penalties
        return (first, evaluate) if penalties is None else penalties.passes(context, first, evaluate)

    def _goes_on(self, chance: float, own_chance: float, floor: float | None) -> bool:
        return own_chance >= self.listener.confidence if floor is None else chance >= floor
