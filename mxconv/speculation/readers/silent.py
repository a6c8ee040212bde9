"""A draft with nothing to say: what reads another model's hidden states is one to a level that has none for it."""

from collections.abc import Sequence

from mxconv.arrays import F32
from mxconv.speculation.draft import Proposal
from mxconv.speculation.statistics import LevelStatistics


class Silent:
    """Proposes nothing, whoever asks.

    Args:
        statistics: of the level that it stands for.
    """

    def __init__(self, statistics: LevelStatistics) -> None:
        self.statistics = statistics

    def propose(self, context: Sequence[int], num_tokens: int, floor: float | None = None) -> Proposal:
        return Proposal([])

    def grow(
        self, context: Sequence[int], most_depth: int, floors: Sequence[float], floor: float | None = None
    ) -> Proposal:
        return Proposal([], parents=[])

    def observe(self, context: Sequence[int], proposal: Proposal, logits: F32) -> None:
        """It has nobody to learn from."""
