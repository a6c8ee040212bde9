"""What is known of a draft that is asked for trees: how many nodes a price leaves, and how many tokens they bring."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from mxconv.drafts.running_mean import RunningMean
from mxconv.speculation.pacing.estimates import DraftEstimate
from mxconv.speculation.pacing.pace import Outcome

FIRST_NODES = 8  # of the first tree
FIRST_DEPTH = 4.0
FIRST_TRUST, TRUST_WEIGHT = 0.8, 4.0  # accepted over expected by the draft's own probabilities, until it was seen
LEAST_TRUST, MOST_TRUST = 0.05, 2.0


@dataclass
class TreeEstimate(DraftEstimate):
    """A tree's nodes are those whose chance is worth their price, so its size follows from the price and the text.

    A node's chance is the product of the draft's probabilities along its path, times a trust that is learned: accepted
    tokens over the sum of all nodes' products. `seconds` is of a node, or of a depth where the draft is a model.

    Args:
        by_depth: whether the draft is a model, which evaluates all of a depth in a pass.
    """

    by_depth: bool = False
    nodes: RunningMean = field(default_factory=lambda: RunningMean(float(FIRST_NODES), weight=1.0))
    depth: RunningMean = field(default_factory=lambda: RunningMean(FIRST_DEPTH, weight=1.0))
    accepted: RunningMean = field(default_factory=lambda: RunningMean(1.0, weight=1.0))
    brought: RunningMean = field(default_factory=lambda: RunningMean(FIRST_TRUST, TRUST_WEIGHT))
    promised: RunningMean = field(default_factory=lambda: RunningMean(1.0, TRUST_WEIGHT))

    def _fade_all(self) -> None:
        for mean in (self.nodes, self.depth, self.accepted, self.brought, self.promised):
            mean.fade(self.rounds_to_fade)
        super()._fade_all()

    def learn(self, asked: int, outcome: Outcome, num_behind: int) -> None:
        """A round in which it was asked for a tree."""
        self._fade_all()
        self.nodes.add(outcome.num_proposed)
        self.depth.add(outcome.depth)
        self.accepted.add(outcome.num_accepted)
        self.brought.add(outcome.num_accepted)
        self.promised.add(sum(outcome.probabilities))
        self._learn_seconds(outcome, num_behind)
        self.was_asked, self.idle_seconds = True, 0.0

    def units(self, outcome: Outcome) -> int:
        """Of what `seconds` is: nodes, or depths."""
        return max(outcome.depth if self.by_depth else outcome.num_proposed, 1)

    @property
    def trust(self) -> float:
        ratio = self.brought.value / self.promised.value if self.promised.value else FIRST_TRUST
        return min(max(ratio, LEAST_TRUST), MOST_TRUST)

    def floors(self, prices: Sequence[float]) -> list[float]:
        """The products of probabilities below which a node's chance is less than its price."""
        return [price / self.trust for price in accumulate(prices, max)]
