"""The figures of tensors, layers or kinds as a terminal table; each row ends with its exponents as a small picture."""

from collections.abc import Sequence

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mxconv.report.bars import scaled
from mxconv.report.exponents import ExponentCounts
from mxconv.report.inspection import Inspection
from mxconv.report.statistics import Statistics
from mxconv.report.terminal_bars import INSIDE, is_utf8
from mxconv.report.text import bits, drafts, group_name, magnitude, outside, stored_bits, stored_draft, window

LEVELS = "▁▂▃▄▅▆▇█"
MAX_SPARKS = 32
WIDE = 110  # columns from which everything is shown


def figures_table(inspection: Inspection, console: Console) -> Table:
    table = Table(
        title=f"By {inspection.per}",
        title_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column(inspection.per, overflow="fold", min_width=16)
    is_wide = console.width >= WIDE
    for title in _figures(inspection.total, inspection.kind == "package", is_wide):
        table.add_column(title, justify="right", no_wrap=True)
    axis = _axis(inspection.groups) if is_wide and is_utf8(console) else None
    if axis is not None:
        table.add_column("exponents\n{}..{}".format(*axis), no_wrap=True)
    for row in (*inspection.groups, inspection.total):
        is_total = row is inspection.total
        if is_total:
            table.add_section()
        name = "total" if is_total else group_name(row, inspection.per)
        cells: list[Text | str] = [Text(name), *_figures(row, inspection.kind == "package", is_wide).values()]
        if axis is not None:
            cells.append(Text(_sparkline(row.exponents, *axis), style=INSIDE))
        table.add_row(*cells, style="bold" if is_total else None)
    return table


def _figures(row: Statistics, is_package: bool, is_wide: bool) -> dict[str, str]:
    """Column titles and texts of one row; a narrow terminal gets the fewer ones."""
    fitted, paper, mxfp4 = drafts(row)
    figures = {
        "weights": f"{row.num_weights:,}",
        "max |w|": magnitude(row.exponents.max_abs if row.exponents else None),
    }
    if is_wide:
        figures["window"] = window(row)
    if is_wide or not is_package:
        figures["outside"] = outside(row, brief=not is_wide)
    if is_package:
        figures |= {"stored\nbits": stored_bits(row), "draft\ndB": stored_draft(row)}
    return figures | {"BSFP\nbits": bits(row), "BSFP\ndB": fitted, "paper\ndB": paper, "MXFP4\ndB": mxfp4}


def _axis(rows: Sequence[Statistics]) -> tuple[int, int] | None:
    """The exponent fields that the rows' sparklines share: from the lowest window to the highest weight, at most 32.

    None where formats are mixed, or nothing is there to show.
    """
    found = [row.exponents for row in rows if row.exponents is not None]
    windows = [exponents.window for exponents in found if exponents.window]
    if not windows or len({exponents.float_format for exponents in found}) != 1:
        return None
    high = max(int(np.flatnonzero(exponents.nonzero).max(initial=0)) for exponents in found)
    return max(min(low for low, _ in windows), high - MAX_SPARKS + 1), high


def _sparkline(exponents: ExponentCounts | None, low: int, high: int) -> str:
    """One character an exponent field, on a log scale."""
    if exponents is None or exponents.window is None:
        return ""
    counts = exponents.nonzero[low : high + 1]
    largest = max(int(np.max(counts)), 1)
    lengths = [scaled(int(count), largest, "log") for count in counts]
    return "".join(LEVELS[min(int(length * 8), 7)] if length else " " for length in lengths)
