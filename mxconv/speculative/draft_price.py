"""What a variant of the target is worth as a draft: how often it agrees, against what its tokens cost."""

from dataclasses import dataclass, field

from mxconv.model.skipped import Skipped
from mxconv.speculative.estimates import MOST_UNUSUAL, RunningMean
from mxconv.speculative.part_bytes import PartBytes


def speedup(agreement: float, price: float, most: int) -> tuple[float, int]:
    """The most tokens for the time of one plain token, and the length of a proposal that gives them.

    Args:
        agreement: the chance that a proposed token stands, those before it standing.
        price: of a proposed token, in passes of the level above.
        most: tokens of a proposal, at least one.

    Source:
        Leviathan et al., arXiv 2211.17192, Theorem 3.8; DEL, arXiv 2504.05598, counts layers in place of passes.
    """
    best = 0.0, 1
    stands = tokens = 1.0
    for length in range(1, most + 1):
        stands *= agreement
        tokens += stands
        best = max(best, (tokens / (1 + length * price), length), key=lambda found: found[0])
    return best


@dataclass
class DraftPrice:
    """A variant's token in passes of the level above: its share of the target's bytes, times what measuring adds.

    The factor is of all variants, since each was measured seldom or never.
    """

    parts: PartBytes
    factor: RunningMean = field(default_factory=lambda: RunningMean(1.0, weight=4.0, least=4.0))

    def of(self, skipped: Skipped) -> float:
        return self.factor.value * self._share(skipped)

    def learn(self, skipped: Skipped, num_tokens: int, draft_seconds: float, level_seconds: float) -> None:
        """A round: what proposing took, and then the level above."""
        if num_tokens and draft_seconds > 0 and level_seconds > 0:
            found = draft_seconds / num_tokens / level_seconds / self._share(skipped)
            usual = self.factor.value
            self.factor.fade()
            self.factor.add(min(max(found, usual / MOST_UNUSUAL), usual * MOST_UNUSUAL))

    def _share(self, skipped: Skipped) -> float:
        return self.parts.total(skipped) / self.parts.total()
