"""What a draft takes for one text while it drafts for several at once."""

from bisect import bisect_left
from dataclasses import dataclass, field

from mxconv.drafts.running_mean import RunningMean
from mxconv.speculation.pacing.convex_curve import ConvexCurve
from mxconv.speculation.pacing.pass_estimate import NARROW_SLOPE

SHARERS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)  # up to which numbers of texts are taken together


@dataclass
class SharedSeconds:
    """Seconds of a unit of drafting, by how many texts shared the draft's passes.

    Kept is what all of them took together, which never falls with their number: so a number that was not seen yet is
    estimated from those that were.
    """

    of_all: dict[int, RunningMean] = field(default_factory=dict)
    sharers: dict[int, RunningMean] = field(default_factory=dict)
    _curve: ConvexCurve | None = None

    @property
    def weight(self) -> float:
        return sum(mean.weight for mean in self.of_all.values())

    def fade(self, num_rounds: int = 1) -> None:
        for mean in (*self.of_all.values(), *self.sharers.values()):
            mean.fade(num_rounds)

    def add(self, each: float, sharers: float) -> None:
        """A unit of one text, and how many texts shared the passes that it took."""
        sharers = round(sharers, 3)  # a mean of the same numbers is no other number
        place = SHARERS[min(bisect_left(SHARERS, sharers), len(SHARERS) - 1)]
        self.of_all.setdefault(place, RunningMean()).add_seconds(each * sharers)
        self.sharers.setdefault(place, RunningMean()).add(sharers)
        self._curve = ConvexCurve([(self.sharers[at].value, self.of_all[at].value) for at in sorted(self.of_all)])

    def each(self, sharers: float) -> float:
        """Of one text among so many; something must have been seen."""
        assert self._curve is not None
        return self._curve.at(sharers, NARROW_SLOPE) / sharers
