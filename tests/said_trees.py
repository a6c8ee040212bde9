"""A draft that always says the same tree, and what became of it."""

from collections.abc import Sequence

import numpy as np

from mxconv.drafts.proposal import Proposal
from mxconv.drafts.statistics import LevelStatistics


class Says:
    """A draft that always says the same."""

    def __init__(self, chain: list[int], tree: Proposal | None = None) -> None:
        self.statistics = LevelStatistics("says")
        self.chain, self.tree = chain, tree or Proposal([], parents=[])
        self.seen: list[Proposal] = []

    def propose(self, context: Sequence[int], num_tokens: int, floor: float | None = None) -> Proposal:
        return Proposal(self.chain[:num_tokens])

    def grow(
        self, context: Sequence[int], most_depth: int, floors: Sequence[float], floor: float | None = None
    ) -> Proposal:
        return self.tree

    def observe(self, context: Sequence[int], proposal: Proposal, logits: np.ndarray) -> None:
        self.seen.append(proposal)


def counts(draft: Says) -> tuple[int, int, int, int]:
    of = draft.statistics
    return of.num_asked, of.num_proposed, of.num_accepted, of.num_nodes
