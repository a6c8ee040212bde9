"""What a variant of the target is worth as a draft: how often it agrees, against what its tokens cost."""

from dataclasses import dataclass, field

from mxconv.drafts.pass_cost import PartBytes
from mxconv.drafts.running_mean import RunningMean
from mxconv.engine.skipped import Skipped


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
    """A variant's token in passes of the level above: its share of the target's bytes, put right by what was measured.

    What rounds took beyond their share is taken for the same in every variant: calls cost what they cost. What they
    took less, because cheaper levels draft for this one, is taken for a share of it.
    """

    parts: PartBytes
    measured: RunningMean = field(default_factory=RunningMean)
    expected: RunningMean = field(default_factory=RunningMean)
    _shares: dict[Skipped, float] = field(default_factory=dict)

    def of(self, skipped: Skipped) -> float:
        share, measured, expected = self.share(skipped), self.measured.value, self.expected.value
        if not self.measured.weight:
            return share
        return share + measured - expected if measured > expected else share * measured / expected

    def learn(self, skipped: Skipped, num_tokens: int, draft_seconds: float, level_seconds: float) -> None:
        """A round: what proposing took, and then the level above."""
        if num_tokens and draft_seconds > 0 and level_seconds > 0:
            for mean in (self.measured, self.expected):
                mean.fade()
            self.measured.add_seconds(draft_seconds / num_tokens / level_seconds)
            self.expected.add(self.share(skipped))

    def share(self, skipped: Skipped) -> float:
        """Of the bytes of weights that a pass of the whole target reads."""
        if skipped not in self._shares:
            self._shares[skipped] = self.parts.total(skipped) / self.parts.total()
        return self._shares[skipped]
