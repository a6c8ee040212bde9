"""What a pass over some number of rows costs a level now: near to nothing while memory is the limit, and then much.

Of a mixture of experts the first rows are dear, since each brings experts that no other row has chosen.
"""

from bisect import bisect_left
from dataclasses import dataclass, field

from mxconv.speculative.pacing.estimates import NARROW_SLOPE, RunningMean
from mxconv.speculative.pacing.row_growth import Growth

WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # up to which passes are taken together

Point = tuple[float, float]  # rows, seconds


@dataclass
class RowPrices:
    """Running means of a pass's seconds, by width.

    A further row costs no less than the one before it. A width whose mean says otherwise was measured while the machine
    was slow, and is not believed: prices follow the greatest convex curve that lies above no mean. A mean stands at the
    mean width of its passes, since a step in prices may lie between two widths that are taken together.

    Where passes over more rows read more weights, rows are counted by the weights that they read: what costs no less
    than the one before it is a weight. Until wider passes were seen, a pass costs what it reads.

    Args:
        growth: rows to what they read, in what one row does; None where all read the same.
    """

    growth: Growth | None = None

    seconds_of: dict[int, RunningMean] = field(default_factory=lambda: {width: RunningMean() for width in WIDTHS})
    rows_of: dict[int, RunningMean] = field(default_factory=lambda: {width: RunningMean() for width in WIDTHS})
    _curve: list[Point] = field(default_factory=list)

    def add(self, num_rows: int, seconds: float) -> None:
        """A pass over so many rows; wider ones than 64 say nothing here."""
        if num_rows <= WIDTHS[-1]:
            width = WIDTHS[bisect_left(WIDTHS, num_rows)]
            for mean in (self.seconds_of[width], self.rows_of[width]):
                mean.fade()
            self.seconds_of[width].add_seconds(seconds)
            self.rows_of[width].add(num_rows)
            means = zip(self.rows_of.values(), self.seconds_of.values(), strict=True)
            self._curve = _convex([(self._place(rows.value), mean.value) for rows, mean in means if mean.weight])

    def seconds(self, num_rows: int) -> float:
        """A pass, from those that were seen: on the curve, and beyond the widest one on as it goes or as rows go."""
        if not self._curve:
            return 0.0
        wanted = self._place(num_rows)
        place = bisect_left([width for width, _ in self._curve], wanted)
        if place == 0:
            return self._curve[0][1]
        (width, known), *following = self._curve[place - 1 : place + 1]
        first = self._curve[0]
        if following:
            slope = _slope((width, known), following[0])
        else:
            last = _slope(*self._curve[-2:]) if len(self._curve) > 1 else 0.0
            slope = max(last, NARROW_SLOPE * first[1])
            if self.growth is not None and len(self._curve) == 1:
                slope = first[1] / first[0]
        return known + slope * (wanted - width)

    def _place(self, num_rows: float) -> float:
        """Where a width stands: at its rows, or at what they read and a little for each."""
        return num_rows if self.growth is None else self.growth(num_rows) + NARROW_SLOPE * (num_rows - 1)


def _convex(points: list[Point]) -> list[Point]:
    """Those of the points that the curve runs through, which falls nowhere."""
    lowest = min(seconds for _, seconds in points)
    curve = [(points[0][0], min(points[0][1], lowest))]
    for point in points[1:]:
        while len(curve) > 1 and _slope(curve[-2], curve[-1]) >= _slope(curve[-1], point):
            curve.pop()
        curve.append(point)
    return curve


def _slope(first: Point, second: Point) -> float:
    return (second[1] - first[1]) / (second[0] - first[0])
