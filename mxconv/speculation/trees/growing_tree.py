"""A tree of guesses while it grows: what a model says of each node's continuations, until it is cut to a proposal."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from mxconv.arrays import F64
from mxconv.speculation.draft import Proposal
from mxconv.speculation.guesses import Guesses

MOST_SIBLINGS = 8


@dataclass
class GrowingTree:
    """Nodes with the chances of their paths.

    Whether a node that was drawn at random is kept must not depend on what was drawn: such nodes stay as they come,
    as many as the floors allow. All others are candidates, of which the likeliest stay at the end.

    Args:
        floors: as `TreeDraft.grow` takes them.
    """

    floors: Sequence[float]
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    own_chances: list[float] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)
    distributions: list[F64] = field(default_factory=list)

    @property
    def is_drawn(self) -> bool:
        return bool(self.distributions)

    def chance(self, node: int) -> float:
        """That a node's path stands; -1 is the context."""
        return 1.0 if node < 0 else self.chances[node]

    def least_chance(self, node: int) -> float:
        """Below which a child of a node cannot be worth a row."""
        floor = self.floors[min(len(self.tokens), len(self.floors) - 1)] if self.is_drawn else self.floors[0]
        return floor / max(self.chance(node), 1e-300)

    def most_children(self, num_depths_left: int = 0) -> int:
        """Of a node; of what is drawn, a node is left for every depth to come."""
        left = len(self.floors)
        if self.is_drawn:
            left = max(left - len(self.tokens) - num_depths_left, min(left - len(self.tokens), 1))
        return min(left, MOST_SIBLINGS)

    def add(self, parent: int, guesses: Guesses) -> list[int]:
        """Children of a node; returns them."""
        first = len(self.tokens)
        chance = self.chance(parent)
        for token, own in zip(guesses.tokens, guesses.chances, strict=True):
            self.tokens.append(token)
            self.parents.append(parent)
            self.own_chances.append(own)
            self.chances.append(chance * own)
            if guesses.distribution is not None:
                self.distributions.append(guesses.distribution)
        return list(range(first, len(self.tokens)))

    def may_have_children(self, nodes: Sequence[int]) -> list[int]:
        """Of some nodes those of which a child could still be kept, the likeliest first."""
        if self.is_drawn:
            num_before = {node: len(self.tokens) for node in nodes}
        else:
            num_before = {node: rank + 1 for rank, node in enumerate(self._ranked())}
        able = [
            node
            for node in nodes
            if num_before[node] < len(self.floors) and self.chances[node] >= self.floors[num_before[node]]
        ]
        return sorted(able, key=lambda node: -self.chances[node])

    def proposal(self) -> Proposal:
        """The nodes that are worth their rows, parents before children and the likelier of siblings first."""
        kept = list(range(len(self.tokens)))
        if not self.is_drawn:
            ranked = self._ranked()[: len(self.floors)]
            worth = [self.chances[node] >= floor for node, floor in zip(ranked, self.floors, strict=False)]
            kept = ranked[: worth.index(False) if False in worth else len(worth)]
        place = {-1: -1} | {node: index for index, node in enumerate(kept)}
        return Proposal(
            [self.tokens[node] for node in kept],
            [self.distributions[node] for node in kept] if self.is_drawn else [],
            [self.own_chances[node] for node in kept],
            [place[self.parents[node]] for node in kept],
        )

    def _ranked(self) -> list[int]:
        """All nodes, the likeliest first; no child is likelier than its parent, and of equal ones it comes later."""
        return sorted(range(len(self.tokens)), key=lambda node: -self.chances[node])
