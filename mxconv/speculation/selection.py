"""How a run chooses its tokens: greedily, or at random with a seed."""

from dataclasses import dataclass
from typing import Literal

from mxconv.drafts.acceptance import Acceptance, CoupledAcceptance, GreedyAcceptance, RejectionAcceptance
from mxconv.drafts.path_penalties import PathPenalties
from mxconv.errors import ModelError
from mxconv.text.distribution import Sampling
from mxconv.text.penalties import Penalties

MAX_SEED = 2**64 - 1
NO_PENALTIES = Penalties()


@dataclass(frozen=True)
class Selection:
    """Greedy without `sampling`.

    Args:
        sampling: temperature, top-k, top-p and min-p.
        accept: by which rule drafts are verified when tokens are drawn at random.
        seed: of all draws, 64 bits.
        penalties: what is held against tokens before they are chosen, greedily too.

    Raises:
        ModelError: the seed has more bits.
    """

    sampling: Sampling | None = None
    accept: Literal["coupled", "rejection"] = "coupled"
    seed: int = 0
    penalties: Penalties = NO_PENALTIES

    def __post_init__(self) -> None:
        if not 0 <= self.seed <= MAX_SEED:
            raise ModelError(f"seed: {self.seed}; a number from 0 to {MAX_SEED} is required. Choose another.")

    def acceptance(self, num_prompt_tokens: int = 0) -> Acceptance:
        """The rule, fresh for a run after a prompt of so many tokens."""
        rule = self._rule()
        if not self.penalties.is_neutral:
            rule.penalties = PathPenalties(self.penalties, num_prompt_tokens)
        return rule

    def _rule(self) -> Acceptance:
        if self.sampling is None:
            return GreedyAcceptance()
        if self.accept == "coupled":
            return CoupledAcceptance(self.sampling, self.seed)
        return RejectionAcceptance(self.sampling, self.seed)


GREEDY = Selection()
