"""Figures and names as text, the same in terminal, picture and page."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # importing it takes longer than a cost report
    from mxconv.report.statistics import Statistics

NOTHING = "-"


def printable(name: str) -> str:
    """A name from a file with control characters escaped, so that it cannot steer a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)


def number(value: float | None, digits: int) -> str:
    return NOTHING if value is None else f"{value:.{digits}f}"


def magnitude(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.4g}"


def rate(value: float) -> str:
    """Something a second, to four figures, never in powers of ten."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def percent(fraction: float) -> str:
    """Never "0%" for something, nor "100%" for less than all."""
    if fraction in (0, 1):
        return f"{fraction:.0%}"
    if fraction < 0.0001:
        return "< 0.01%"
    return f"{min(fraction, 0.9999):.2%}"


def outside(statistics: "Statistics", *, brief: bool = False) -> str:
    """How many weights lie outside the window, and which part of the non-zero ones; the count alone when brief."""
    exponents = statistics.exponents
    if exponents is None or exponents.window is None:
        return NOTHING
    count = exponents.num_outside_window
    if brief or not count:
        return f"{count:,}"
    return f"{count:,} ({percent(count / exponents.num_nonzero)})"


def window(statistics: "Statistics") -> str:
    exponents = statistics.exponents
    if exponents is None or exponents.window is None:
        return NOTHING
    return "{}..{}".format(*exponents.window)


def decibels(signal: float, error: float, value: float | None) -> str:
    """A signal-to-noise ratio; a draft without any error is "exact"."""
    return "exact" if signal > 0 and error == 0 else number(value, 2)


def drafts(statistics: "Statistics") -> tuple[str, str, str]:
    """The three ratios: BSFP fitted, BSFP paper, MXFP4."""
    sums = statistics.drafts
    if sums is None:
        return NOTHING, NOTHING, NOTHING
    return (
        decibels(sums.signal, sums.bsfp_error, statistics.bsfp_draft_sqnr_db),
        decibels(sums.signal, sums.bsfp_paper_error, statistics.bsfp_paper_draft_sqnr_db),
        decibels(sums.signal, sums.mxfp4_error, statistics.mxfp4_sqnr_db),
    )


def bits(statistics: "Statistics") -> str:
    return NOTHING if statistics.drafts is None else f"{statistics.drafts.bsfp_bits_per_weight:.2f}"


def stored_bits(statistics: "Statistics") -> str:
    return NOTHING if statistics.stored is None else f"{statistics.stored.bits_per_weight:.2f}"


def stored_draft(statistics: "Statistics") -> str:
    sums = statistics.stored
    return NOTHING if sums is None else decibels(sums.signal, sums.error, statistics.stored_draft_sqnr_db)


def group_name(statistics: "Statistics", per: str) -> str:
    """A group's name as a row's label."""
    is_layer = per == "layer" and statistics.name.isdecimal()
    return f"layer {statistics.name}" if is_layer else printable(statistics.name)
