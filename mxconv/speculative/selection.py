"""How a run chooses its tokens: greedily, or at random with a seed."""

from dataclasses import dataclass
from typing import Literal

from mxconv.errors import ModelError
from mxconv.model.distribution import Sampling
from mxconv.speculative.acceptance import Acceptance
from mxconv.speculative.rules.coupled import CoupledAcceptance
from mxconv.speculative.rules.greedy import GreedyAcceptance
from mxconv.speculative.rules.rejection import RejectionAcceptance

MAX_SEED = 2**64 - 1


@dataclass(frozen=True)
class Selection:
    """Greedy without `sampling`.

    Args:
        sampling: temperature, top-k and top-p.
        accept: by which rule drafts are verified when tokens are drawn at random.
        seed: of all draws, 64 bits.

    Raises:
        ModelError: the seed has more bits.
    """

    sampling: Sampling | None = None
    accept: Literal["coupled", "rejection"] = "coupled"
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.seed <= MAX_SEED:
            raise ModelError(f"seed: {self.seed}; a number from 0 to {MAX_SEED} is required. Choose another.")

    def acceptance(self) -> Acceptance:
        """The rule, fresh for a run."""
        if self.sampling is None:
            return GreedyAcceptance()
        if self.accept == "coupled":
            return CoupledAcceptance(self.sampling, self.seed)
        return RejectionAcceptance(self.sampling, self.seed)


GREEDY = Selection()
