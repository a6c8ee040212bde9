"""A histogram of exponents as the places of an SVG's bars, axes and words, for templates/histogram.html.j2."""

from typing import Any

from mxconv.report.bars import BarChart, bar_chart, scaled
from mxconv.report.exponents import ExponentCounts
from mxconv.report.text import percent

WIDTH, HEIGHT = 720, 280  # in units of the SVG's view box
LEFT, TOP, BOTTOM = 64, 10, 216  # of the plot
MOST_TICKS = 5
MOST_WIDE_LABELS = 22  # bars whose labels fit beside each other at full size


def histogram(exponents: ExponentCounts | None) -> dict[str, Any] | None:
    """What the template draws; None where there is no weight to count."""
    chart = bar_chart(exponents) if exponents is not None else None
    if exponents is None or chart is None:
        return None
    return {
        "width": WIDTH,
        "height": HEIGHT,
        "left": LEFT,
        "bottom": BOTTOM,
        "chart": chart,
        "bars": _bars(chart),
        "label": "narrow" if len(chart.bars) > MOST_WIDE_LABELS else "wide",
        "ticks": _ticks(chart),
        "float_format": exponents.float_format.name,
        "inside": percent(1 - exponents.num_outside_window / exponents.num_nonzero),
    }


def _bars(chart: BarChart) -> list[dict[str, Any]]:
    """The window's shade is drawn behind its bars."""
    step = (WIDTH - LEFT) / len(chart.bars)
    return [
        {
            "x": round(LEFT + number * step, 2),
            "width": round(step * 0.86, 2),
            "step": round(step, 2),
            "middle": round(LEFT + (number + 0.43) * step, 2),
            "y": round(_height(bar.length), 2),
            "height": round(BOTTOM - _height(bar.length), 2),
            "inside": bar.place == "inside",
            "label": bar.label.replace(" ", ""),
            "power": bar.magnitudes.replace("2^", "") if bar.first == bar.last else "",
            "title": f"exponent {bar.label}, magnitude {bar.magnitudes}: {bar.count:,} ({percent(bar.fraction)})",
        }
        for number, bar in enumerate(chart.bars)
    ]


def _ticks(chart: BarChart) -> list[dict[str, Any]]:
    """Counts on the vertical axis: round ones up to the largest."""
    largest = max(bar.count for bar in chart.bars)
    if chart.scale == "log":
        powers = range(len(str(largest)))
        counts = [10**power for power in powers[:: -(-len(powers) // MOST_TICKS)]]
    else:
        unit = 10 ** (len(str(largest)) - 1)
        step = next(part for part in (unit // 2 or 1, unit, 2 * unit) if largest // part <= MOST_TICKS)
        counts = list(range(0, largest + 1, step))
    return [{"y": round(_height(scaled(count, largest, chart.scale)), 2), "label": _short(count)} for count in counts]


def _height(length: float) -> float:
    return BOTTOM - length * (BOTTOM - TOP)


def _short(count: int) -> str:
    for unit, name in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= unit:
            return f"{count / unit:g} {name}"
    return str(count)
