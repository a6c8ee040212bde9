"""What a pass over some number of rows costs a level now: near to nothing while memory is the limit, and then much.

Of a mixture of experts the first rows are dear, since each brings experts that no other row has chosen.
"""

from bisect import bisect_left
from dataclasses import dataclass, field

from mxconv.drafts.running_mean import RunningMean
from mxconv.speculation.pacing.convex_curve import ConvexCurve
from mxconv.speculation.pacing.pass_estimate import NARROW_SLOPE
from mxconv.speculation.pacing.row_growth import Growth

# up to which passes are taken together
WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536)


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
    _curve: ConvexCurve | None = None

    def add(self, num_rows: int, seconds: float) -> None:
        """A pass over so many rows; one that is wider than all widths says nothing here."""
        if num_rows <= WIDTHS[-1]:
            width = _width(num_rows)
            for mean in (self.seconds_of[width], self.rows_of[width]):
                mean.fade()
            self.seconds_of[width].add_seconds(seconds)
            self.rows_of[width].add(num_rows)
            means = zip(self.rows_of.values(), self.seconds_of.values(), strict=True)
            self._curve = ConvexCurve([(self._place(rows.value), mean.value) for rows, mean in means if mean.weight])

    def seconds(self, num_rows: float, num_texts: int = 1) -> float:
        """A pass, from those that were seen: on the curve, and beyond the widest one on as it goes or as rows go.

        Rows that nobody has seen cost at least the usual slope, a row of each text together.
        """
        if self._curve is None:
            return 0.0
        width, _ = self._curve.points[0]
        reads_more = self.growth is not None and len(self._curve.points) == 1
        return self._curve.at(self._place(num_rows), 1 / width if reads_more else NARROW_SLOPE / num_texts)

    def knows(self, num_rows: int) -> bool:
        """Whether passes of about so many rows were seen."""
        return num_rows > WIDTHS[-1] or self.seconds_of[_width(num_rows)].weight > 0

    def _place(self, num_rows: float) -> float:
        """Where a width stands: at its rows, or at what they read and a little for each."""
        return num_rows if self.growth is None else self.growth(num_rows) + NARROW_SLOPE * (num_rows - 1)


def _width(num_rows: int) -> int:
    return WIDTHS[bisect_left(WIDTHS, num_rows)]
