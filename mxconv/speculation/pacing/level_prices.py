"""What a level's passes cost one text, at any load."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from mxconv.drafts.passes import Load
from mxconv.speculation.pacing.pace import Outcome
from mxconv.speculation.pacing.pass_estimate import NARROW_SLOPE, PassEstimate
from mxconv.speculation.pacing.row_growth import Growth
from mxconv.speculation.pacing.row_prices import RowPrices
from mxconv.speculation.pacing.tree_estimate import FIRST_NODES


@dataclass(frozen=True)
class Prices:
    """Seconds of one text's part in a pass, all texts having as many rows as it.

    Args:
        num_texts: in the pass.
        plain: of one row.
        further: of each of some further ones, on average.
        rows: of so many rows, as trees have them.
    """

    num_texts: int
    plain: float
    further: Callable[[float], float]
    rows: Callable[[float], float]


class LevelPrices:
    """Learns from passes of any width. They are kept by the rows of all texts, so that a new load is priced at once.

    Args:
        growth: what more rows of a pass read; None is nothing more.
    """

    def __init__(self, growth: Growth | None = None) -> None:
        self._alone = PassEstimate() if growth is None else PassEstimate(first_slope=_slope_of(growth))
        self._rows = RowPrices(growth)
        self._last: int | None = None
        self._at: dict[Load, Prices] = {}  # until the next pass: all texts of a step ask at the same load

    def add(self, outcome: Outcome) -> None:
        """A round's pass; one that several texts tell of counts once."""
        joint = outcome.joint
        if joint is None or joint.number != self._last:
            self._at.clear()
        if joint is None:
            self._rows.add(outcome.num_evaluated, outcome.level_seconds)
            self._alone.add(outcome.num_evaluated, outcome.level_seconds)
        elif joint.number != self._last:
            self._last = joint.number
            self._rows.add(joint.num_rows, joint.seconds)
            if joint.num_rows == outcome.num_evaluated:
                self._alone.add(outcome.num_evaluated, outcome.level_seconds)

    def knows(self, load: Load) -> bool:
        """Whether it was seen what a plain round costs, which is the measure of everything else."""
        if load.num_texts == 1 and not load.other_rows:
            return self._alone.plain.weight > 0
        return self._rows.knows(load.num_texts + load.other_rows)

    def at(self, load: Load) -> Prices:
        if load not in self._at:
            self._at[load] = self._priced(load)
        return self._at[load]

    def _priced(self, load: Load) -> Prices:
        num_texts, other_rows = load.num_texts, load.other_rows
        if num_texts == 1 and not other_rows:
            plain, further = self._alone.line()
            return Prices(1, plain, lambda _: further, cache(self._rows.seconds))

        @cache
        def rows(count: float) -> float:
            return self._rows.seconds(num_texts * count + other_rows, num_texts) / num_texts

        plain = rows(1)
        return Prices(num_texts, plain, lambda count: (rows(1 + count) - plain) / count if count else 0.0, rows)

    def slowness(self, outcome: Outcome) -> float:
        """How many times as long as expected a shared pass took."""
        assert outcome.joint is not None
        return outcome.joint.seconds / self._rows.seconds(outcome.joint.num_rows)


def _slope_of(growth: Growth) -> float:
    """Of a chain of the usual length, a token's share of a plain pass."""
    return NARROW_SLOPE + (growth(1 + FIRST_NODES) - 1) / FIRST_NODES
