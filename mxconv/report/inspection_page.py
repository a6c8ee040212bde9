"""An inspection in a terminal, its exponents as bars, then its figures; as tables, charts and one HTML page.

The charts show where the exponents lie, and how near each 4-bit draft comes.
"""

from math import log10

from rich.console import Console
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from mxconv.report.charts import Chart, PageSection, Series, plain, render_page
from mxconv.report.exponents import ExponentCounts
from mxconv.report.inspection import Inspection
from mxconv.report.tables import NOTHING, TextTable, number, percent, print_table, printable
from mxconv.report.weight_statistics import Statistics

BAR_WIDTH = 40
MAX_ROW_HISTOGRAMS = 16
MAX_NOTES = 12
WIDE = 110  # terminal columns from which all figures are shown
LEGEND = [
    "bits: bits a weight that BSFP stores, with scales, escapes and padding. dB: signal-to-noise ratio of the 4-bit "
    "draft, with the fitted and the paper's table, and of MXFP4. They compare matrices of one kind of draft. Of two "
    "kinds, or of a cast and a calibrated draft, the one with fewer dB may agree with the target more often: `mxconv "
    "evaluate` measures it.",
    "Sums of bits and dB count the quantized tensors, or all matrices where no tensor is quantized.",
]


def print_inspection(inspection: Inspection, console: Console, *, row_histograms: bool = False) -> None:
    """Print the histogram of all tensors and the table of groups.

    Args:
        row_histograms: also print the histogram of each group, if they are not more than 16.
    """
    total = inspection.total
    console.print(Text(heading(inspection), style="bold"), soft_wrap=True)
    console.print(counted(inspection), highlight=False)
    for note in notes(inspection):
        console.print(Text(f"note: {note}", style="yellow"), soft_wrap=True)
    console.print()
    groups = inspection.groups if row_histograms else ()
    if len(groups) > MAX_ROW_HISTOGRAMS:
        limit = f"{len(groups)} rows: histograms are printed for up to {MAX_ROW_HISTOGRAMS}. Narrow --tensor.\n"
        console.print(limit, highlight=False)
    else:
        for group in groups:
            _print_histogram(group.exponents, group_name(group, inspection.per), console)
    if len(groups) != 1:
        name = "all tensors" if total.num_tensors > 1 else inspection.tensors[0].name
        _print_histogram(total.exponents, name, console)
    table = group_table(inspection, is_wide=console.width >= WIDE)
    own = [f"{printable(tensor.name)}: {tensor.note}" for tensor in inspection.tensors if tensor.note]
    table.notes += own[:MAX_NOTES]
    if len(own) > MAX_NOTES:
        table.notes.append(f"and {len(own) - MAX_NOTES} more notes (all with --json)")
    print_table(table, console)


def heading(inspection: Inspection) -> str:
    """The source, its kind and its commit."""
    commit = f", {inspection.commit[:12]}" if inspection.commit else ""
    return printable(f"{inspection.source}  ({inspection.kind}{commit})")


def counted(inspection: Inspection) -> str:
    """How many tensors and weights there are, and how many tensors are quantized."""
    total = inspection.total
    are = "are" if inspection.kind == "package" else "would be"
    counts = f"{total.num_tensors:,} tensors, {total.num_weights:,} weights"
    return f"{counts}; {total.num_quantized:,} tensors {are} quantized."


def notes(inspection: Inspection) -> list[str]:
    """The notes on the source and on the total."""
    return [printable(note) for note in (*inspection.notes, inspection.total.note) if note]


def group_table(inspection: Inspection, *, is_wide: bool = True) -> TextTable:
    """The figures of each group and of the total."""
    table = _table(f"By {inspection.per}", inspection, inspection.groups, inspection.per, is_wide)
    table.rows.append(["total", *_figures(inspection.total, inspection.kind == "package", is_wide).values()])
    table.notes += LEGEND
    return table


def tensor_table(inspection: Inspection) -> TextTable:
    """The figures of each tensor, with its type, its shape and why it is quantized or not below its name."""
    table = _table("By tensor", inspection, inspection.tensors, "tensor", True)
    for row, tensor in zip(table.rows, inspection.tensors, strict=True):
        shape = " × ".join(map(str, tensor.shape or ()))
        about = (f"{tensor.dtype or ''} {shape}".strip(), tensor.codec, tensor.reason, tensor.note)
        row[0] += "\n" + ", ".join(part for part in about if part)
    return table


def group_name(statistics: Statistics, per: str) -> str:
    """The name of a group as the label of a row."""
    is_layer = per == "layer" and statistics.name.isdecimal()
    return f"layer {statistics.name}" if is_layer else printable(statistics.name)


def window_line(exponents: ExponentCounts) -> str:
    """The window, how much it holds, and how much lies below and above it."""
    assert exponents.window is not None
    low, high = exponents.window
    held = percent(1 - exponents.num_outside_window / exponents.num_nonzero)
    return (
        f"window {low}..{high} (16 exponents, 2^{exponents.value_exponent(low)} to "
        f"2^{exponents.value_exponent(high) + 1}) holds {held} of the non-zero weights; outside: "
        f"{int(exponents.nonzero[:low].sum()):,} below, {int(exponents.nonzero[high + 1 :].sum()):,} above."
    )


def _table(title: str, inspection: Inspection, rows: tuple[Statistics, ...], per: str, is_wide: bool) -> TextTable:
    is_package = inspection.kind == "package"
    table = TextTable(title, [per, *_figures(inspection.total, is_package, is_wide)])
    table.rows = [[group_name(row, per), *_figures(row, is_package, is_wide).values()] for row in rows]
    return table


def _figures(row: Statistics, is_package: bool, is_wide: bool) -> dict[str, str]:
    """The figures of a row by the heading of their column."""
    exponents, drafts, stored = row.exponents, row.drafts, row.stored
    window = exponents.window if exponents else None
    found = {
        "weights": f"{row.num_weights:,}",
        "max |w|": NOTHING if exponents is None or exponents.max_abs is None else f"{exponents.max_abs:.4g}",
    }
    if is_wide:
        found["window"] = NOTHING if window is None else "{}..{}".format(*window)
    if is_wide or not is_package:
        count = exponents.num_outside_window if exponents else 0
        share = f" ({percent(count / exponents.num_nonzero)})" if is_wide and exponents and count else ""
        found["outside"] = NOTHING if window is None else f"{count:,}{share}"
    if is_package:
        found["stored\nbits"] = number(stored.bits_per_weight if stored else None, 2)
        found["draft\ndB"] = _decibels(stored.signal, stored.error, row.stored_draft_sqnr_db) if stored else NOTHING
    found["BSFP\nbits"] = number(drafts.bsfp_bits_per_weight if drafts else None, 2)
    if drafts is None:
        return found | dict.fromkeys(("BSFP\ndB", "paper\ndB", "MXFP4\ndB"), NOTHING)
    return found | {
        "BSFP\ndB": _decibels(drafts.signal, drafts.bsfp_error, row.bsfp_draft_sqnr_db),
        "paper\ndB": _decibels(drafts.signal, drafts.bsfp_paper_error, row.bsfp_paper_draft_sqnr_db),
        "MXFP4\ndB": _decibels(drafts.signal, drafts.mxfp4_error, row.mxfp4_sqnr_db),
    }


def _decibels(signal: float, error: float, value: float | None) -> str:
    """A signal-to-noise ratio; "exact" for a draft without any error."""
    return "exact" if signal > 0 and error == 0 else number(value, 2)


def _print_histogram(exponents: ExponentCounts | None, title: str, console: Console) -> None:
    """Print a bar for each exponent, the highest on top; those of the window are marked."""
    if exponents is None:
        return
    console.print(Text(f"Exponents of {printable(title)}", style="bold"), soft_wrap=True)
    if exponents.window is None:
        console.print("no weight is finite and not zero\n")
        return
    low, high = exponents.window
    sums = [int(exponents.nonzero[first : last + 1].sum()) for first, last in exponents.ranges]
    table = Table("field", "|w| from", "weights", "share", "", box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for column in table.columns:
        column.justify = "right"
    table.add_column(f"{exponents.scale} scale, up to {max(sums):,}", no_wrap=True)
    for (first, last), count in reversed(list(zip(exponents.ranges, sums, strict=True))):
        is_inside = low <= first <= high
        below = last < low and first != last  # a tail
        bar = ProgressBar(
            total=1.0,
            completed=_length(count, max(sums), exponents.scale),
            width=BAR_WIDTH,
            complete_style="green" if is_inside else "yellow",
            finished_style="green",
        )
        table.add_row(
            str(first) if first == last else f"<= {last}" if below else f">= {first}",
            f"< 2^{exponents.value_exponent(last) + 1}"
            if below or last == 0
            else f"2^{exponents.value_exponent(first)}",
            f"{count:,}",
            percent(count / exponents.num_nonzero),
            "|" if is_inside else "",
            bar if count else "",
        )
    console.print(table)
    largest = f"{exponents.max_abs:.4g}" if exponents.max_abs is not None else NOTHING
    console.print(
        f"{window_line(exponents)}\nzeros {exponents.num_zero:,}, non-finite {exponents.num_nonfinite:,}, largest "
        f"magnitude {largest}.\n",
        highlight=False,
    )


def _length(count: int, largest: int, scale: str) -> float:
    """The length of a bar: 1 for the largest count; a log scale begins below one weight."""
    return count / largest if scale == "linear" else log10(1 + count) / log10(1 + largest)


DRAFTS = {
    "BSFP, fitted table": "bsfp_draft_sqnr_db",
    "MXFP4": "mxfp4_sqnr_db",
    "BSFP, paper's table": "bsfp_paper_draft_sqnr_db",
}
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
MOST_GROUPS = 160  # a taller picture cannot be read any more


def render_inspection_page(inspection: Inspection) -> str:
    """The text of the page."""
    tables = [tensor_table(inspection)]
    if inspection.per != "tensor":
        tables.insert(0, group_table(inspection))
    else:
        tables[0].notes += LEGEND
    sections = [exponents_section(inspection), *(PageSection(tables=[table]) for table in tables)]
    return render_page(heading(inspection), [counted(inspection)], notes(inspection), sections)


def exponents_section(inspection: Inspection) -> PageSection:
    """The histogram of all tensors and the decibels of their drafts, with the figures of the total."""
    total, exponents = inspection.total, inspection.total.exponents
    if exponents is None or exponents.window is None:
        line = "No weight to count: none is a 16-bit float that is finite and not zero, or both formats are mixed."
        return PageSection("Exponents of all tensors", [line])
    facts = {
        "weights": f"{total.num_weights:,}",
        "largest magnitude": f"{exponents.max_abs:.4g}",
        "zeros": f"{exponents.num_zero:,}",
        "non-finite": f"{exponents.num_nonfinite:,}",
    }
    title, charts = inspection_charts(inspection)
    return PageSection("Exponents of all tensors", [window_line(exponents)], facts, charts, title)


def inspection_charts(inspection: Inspection) -> tuple[str, list[Chart]]:
    """A title; the exponents of all tensors, and the signal-to-noise ratios of the drafts by group."""
    title = plain(f"{inspection.source} ({inspection.kind})")
    return title, [_exponents(inspection.total.exponents), _drafts(inspection)]


def _exponents(exponents: ExponentCounts | None) -> Chart:
    """How many weights each exponent field has, inside and outside the window of 16."""
    if exponents is None or exponents.window is None:
        return Chart("Exponents of all tensors", "")
    (low, high), counts = exponents.window, exponents.nonzero
    fields = [field for field in range(len(counts)) if counts[field]]
    first, last = min(low, fields[0]), max(high, fields[-1])
    inside, outside = (
        [(field, int(counts[field])) for field in fields if (low <= field <= high) == is_inside]
        for is_inside in (True, False)
    )
    ticks = range(high - (high - first) // 3 * 3, last + 1, 3 if last - first < 40 else 12)
    return Chart(
        "Exponents of all tensors",
        f"exponent field of {exponents.float_format.name}, and the least magnitude of its weights",
        f"weights ({exponents.scale} scale)",
        [
            Series(f"in the window {low}..{high}", inside, "bars"),
            Series("outside", outside, "bars"),
        ],
        y_scale=exponents.scale,
        y_limits=(0.5 if exponents.scale == "log" else 0, None),
        x_limits=(first - 1, last + 1),
        x_ticks={f: f"{f}\n2{str(exponents.value_exponent(f)).translate(SUPERSCRIPTS)}" for f in ticks},
    )


def _drafts(inspection: Inspection) -> Chart:
    """The decibels of each draft by group, the total last."""
    groups = [group for group in inspection.groups if group.bsfp_draft_sqnr_db is not None][:MOST_GROUPS]
    rows, series = [*groups, inspection.total], []
    for label, key in DRAFTS.items():
        found = [(value, place) for place, row in enumerate(rows) if (value := getattr(row, key)) is not None]
        series.append(Series(label, found, "points"))
    return Chart(
        f"4-bit drafts by {inspection.per}",
        "signal to noise of the draft (dB), higher is better",
        series=series,
        rows=[*(group_name(group, inspection.per) for group in groups), "total"],
    )
