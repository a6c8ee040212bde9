"""What drafts without a model have in common: they follow continuations from state to state."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Generic, Self

from mxconv.arrays import F32
from mxconv.speculation.acceptance import Acceptance
from mxconv.speculation.proposal import Proposal
from mxconv.speculation.statistics import LevelStatistics
from mxconv.speculation.trees import State, grow_best_first


class LookUp(ABC, Generic[State]):
    """A draft that proposes what followed before, as a chain or as a tree.

    Args:
        statistics: what it did.
        confidence: a chain stops before the first token whose probability is below.
    """

    def __init__(self, statistics: LevelStatistics, confidence: float = 0.0) -> None:
        self.statistics = statistics
        self.confidence = confidence

    def of_text(self, statistics: LevelStatistics, acceptance: Acceptance) -> Self:
        """A draft for one text with the same tables, which all texts fill."""
        made = copy.copy(self)
        made.statistics = statistics
        return made

    @abstractmethod
    def state(self, context: Sequence[int]) -> State:
        """The state after a context."""

    @abstractmethod
    def continuations(self, state: State) -> Iterable[tuple[int, float, State]]:
        """The different tokens that may follow, with their probabilities and states; a chain takes the first."""

    def propose(self, context: Sequence[int], num_tokens: int, floor: float | None = None) -> Proposal:
        """Up to `num_tokens` tokens."""
        tokens: list[int] = []
        with self.statistics.forward():
            state = self.state(context)
            while len(tokens) < num_tokens:
                token, probability, state = next(iter(self.continuations(state)), (0, 0.0, state))
                if not probability > 0 or probability < self.confidence:  # of logits that are NaN it is NaN
                    break
                tokens.append(token)
        return Proposal(tokens)

    def grow(
        self, context: Sequence[int], most_depth: int, floors: Sequence[float], floor: float | None = None
    ) -> Proposal:
        """The likeliest tree of continuations."""
        with self.statistics.forward():
            return grow_best_first(self.state(context), self.continuations, most_depth, floors)

    def observe(self, context: Sequence[int], proposal: Proposal, logits: F32) -> None:
        """Learn from what the level above verified."""
