"""A histogram of exponents in a terminal: one line an exponent, the highest on top, the window in brackets."""

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mxconv.report.bars import Bar, BarChart, bar_chart
from mxconv.report.statistics import Statistics
from mxconv.report.text import magnitude, percent, printable

BAR_WIDTH = 40
EIGHTHS = " ▏▎▍▌▋▊▉█"
INSIDE, OUTSIDE = "green", "yellow"


def print_histogram(statistics: Statistics, title: str, console: Console) -> None:
    exponents = statistics.exponents
    if exponents is None:
        return
    chart = bar_chart(exponents)
    console.print(Text(f"Exponents of {printable(title)}", style="bold"), soft_wrap=True)
    if chart is None:
        console.print("no weight is finite and not zero\n")
        return
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("field", justify="right")
    table.add_column("|w| from", justify="right")
    table.add_column("weights", justify="right")
    table.add_column("share", justify="right")
    table.add_column("")  # the window's bracket
    largest = max(bar.count for bar in chart.bars)
    table.add_column(f"{chart.scale} scale, {'0' if chart.scale == 'linear' else '1'} to {largest:,}", no_wrap=True)
    for bar in reversed(chart.bars):
        style = INSIDE if bar.place == "inside" else OUTSIDE
        table.add_row(
            _plain(bar.label, console),
            _plain(bar.magnitudes, console),
            f"{bar.count:,}",
            percent(bar.fraction),
            _bracket(bar, chart, console),
            Text(_filled(bar.length, console), style=style),
        )
    console.print(table)
    low, high = chart.window
    held = 1 - exponents.num_outside_window / exponents.num_nonzero
    console.print(
        f"window {low}..{high} (16 exponents, 2^{exponents.value_exponent(low)} to "
        f"2^{exponents.value_exponent(high) + 1}) holds {percent(held)} of the non-zero weights; outside: "
        f"{chart.num_below:,} below, {chart.num_above:,} above.\n"
        f"zeros {exponents.num_zero:,}, non-finite {exponents.num_nonfinite:,}, largest magnitude "
        f"{magnitude(exponents.max_abs)}.\n",
        highlight=False,
    )


def _filled(length: float, console: Console) -> str:
    """A bar of up to 40 cells in steps of an eighth; whatever is not 0 shows."""
    if not is_utf8(console):
        return "#" * max(round(length * BAR_WIDTH), int(length > 0))
    eighths = max(round(length * BAR_WIDTH * 8), int(length > 0))
    bar = "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()
    assert cell_len(bar) <= BAR_WIDTH
    return bar


def _bracket(bar: Bar, chart: BarChart, console: Console) -> str:
    """The window's mark beside its 16 rows, the highest exponent on top."""
    low, high = chart.window
    if bar.place != "inside":
        return " "
    if not is_utf8(console):
        return "|"
    return "┐" if bar.first == high else "┘" if bar.first == low else "│"


def is_utf8(console: Console) -> bool:
    return console.encoding.lower().startswith("utf")


def _plain(text: str, console: Console) -> str:
    return text if is_utf8(console) else text.replace("≤", "<=").replace("≥", ">=")
