"""A histogram of exponents as bars: what terminal, picture and page all draw."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log10
from typing import Literal

import numpy as np

from mxconv.report.exponents import ExponentCounts

MARGIN = 6  # fields beyond the window that keep a bar of their own; what lies further shares one
LINEAR_RATIO = 40  # up to this largest-to-smallest ratio all bars are visible on a linear scale

Place = Literal["below", "inside", "above"]


@dataclass(frozen=True)
class Bar:
    """Non-zero finite weights of one exponent field, or of the fields of a far tail together."""

    first: int
    last: int
    count: int
    fraction: float  # of the non-zero finite weights
    length: float  # 0..1 on the chart's scale; above 0 where count is
    place: Place  # relative to the window
    label: str  # exponent field, or "<= 96"
    magnitudes: str  # "2^-5", the least magnitude of the field; "< 2^-30" of a lower tail


@dataclass(frozen=True)
class BarChart:
    bars: tuple[Bar, ...]  # by ascending exponent
    scale: Literal["linear", "log"]
    window: tuple[int, int]
    num_below: int  # weights below the window
    num_above: int


def bar_chart(exponents: ExponentCounts) -> BarChart | None:
    """Bars of all fields from the lowest to the highest with weights, the window's own always among them.

    None where there is no non-zero finite weight. The scale is linear where every bar shows on it, else logarithmic.
    """
    counts, window = exponents.nonzero, exponents.window
    if window is None:
        return None
    low, high = window
    occupied = np.flatnonzero(counts)
    lowest, highest = min(low, int(occupied[0])), max(high, int(occupied[-1]))
    ranges = [(field, field) for field in range(max(lowest, low - MARGIN), min(highest, high + MARGIN) + 1)]
    if lowest < low - MARGIN:
        ranges.insert(0, (lowest, low - MARGIN - 1))
    if highest > high + MARGIN:
        ranges.append((high + MARGIN + 1, highest))
    sums = [int(counts[first : last + 1].sum()) for first, last in ranges]
    scale = _scale(sums)
    total, largest = sum(sums), max(sums)

    def bar(first: int, last: int, count: int) -> Bar:
        return Bar(
            first=first,
            last=last,
            count=count,
            fraction=count / total,
            length=scaled(count, largest, scale),
            place="below" if last < low else "above" if first > high else "inside",
            label=_label(first, last, high),
            magnitudes=_magnitudes(exponents, first, last, high),
        )

    bars = tuple(bar(first, last, count) for (first, last), count in zip(ranges, sums, strict=True))
    return BarChart(bars, scale, window, int(counts[:low].sum()), int(counts[high + 1 :].sum()))


def scaled(count: int, largest: int, scale: Literal["linear", "log"]) -> float:
    """The length of a bar: 0 for no weights, 1 for the largest count; a log scale begins below one weight."""
    if not count:
        return 0.0
    return count / largest if scale == "linear" else log10(1 + count) / log10(1 + largest)


def _scale(counts: Sequence[int]) -> Literal["linear", "log"]:
    present = [count for count in counts if count]
    return "linear" if max(present) <= LINEAR_RATIO * min(present) else "log"


def _label(first: int, last: int, high: int) -> str:
    if first == last:
        return str(first)
    return f"≥ {first}" if first > high else f"≤ {last}"


def _magnitudes(exponents: ExponentCounts, first: int, last: int, high: int) -> str:
    if (first != last and first < high) or last == 0:
        return f"< 2^{exponents.value_exponent(last) + 1}"
    return f"{'≥ ' if first != last else ''}2^{exponents.value_exponent(first)}"
