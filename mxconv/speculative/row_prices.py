"""What a pass over some number of rows costs a level now: near to nothing while memory is the limit, and then much."""

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import pairwise

from mxconv.speculative.estimates import NARROW_SLOPE, RunningMean

WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # up to which passes are taken together


@dataclass
class RowPrices:
    """Running means of a pass's seconds, by width."""

    seconds_of: dict[int, RunningMean] = field(default_factory=lambda: {width: RunningMean() for width in WIDTHS})

    def add(self, num_rows: int, seconds: float) -> None:
        """A pass over so many rows; wider ones than 64 say nothing here."""
        if num_rows <= WIDTHS[-1]:
            mean = self.seconds_of[WIDTHS[bisect_left(WIDTHS, num_rows)]]
            mean.fade()
            mean.add_seconds(seconds)

    def seconds(self, num_rows: int) -> float:
        """A pass, from those that were seen: lines between them, and beyond the widest one its slope goes on."""
        points: list[tuple[int, float]] = []
        for width, mean in self.seconds_of.items():
            if mean.weight:  # a wider pass takes no less: what says otherwise is noise
                points.append((width, max(mean.value, points[-1][1] if points else 0.0)))
        if not points:
            return 0.0
        first = points[0][1] * NARROW_SLOPE
        slopes = [(high - low) / (wide - narrow) for (narrow, low), (wide, high) in pairwise(points)]
        place = bisect_left([width for width, _ in points], num_rows)
        if place == 0:
            return points[0][1]
        width, known = points[place - 1]
        slope = slopes[place - 1] if place <= len(slopes) else max([first, *slopes])
        return known + slope * (num_rows - width)
