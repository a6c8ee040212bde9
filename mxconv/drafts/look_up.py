"""What drafts without a model have in common: they follow continuations from state to state."""

import copy
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Generic, Self

from mxconv.engine.tree import TreeLimits
from mxconv.speculation.acceptance import Acceptance
from mxconv.speculation.proposal import Draft, Proposal
from mxconv.speculation.statistics import LevelStatistics
from mxconv.speculation.trees import State, grow_best_first


class LookUp(Draft, Generic[State]):
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

    def propose(self, context: Sequence[int], limits: TreeLimits) -> Proposal:
        """The likeliest tree of continuations; a chain of those that it is confident of."""
        least = self.confidence if limits.is_chain else 0.0
        with self.statistics.forward():
            return grow_best_first(self.state(context), self.continuations, limits, least)
