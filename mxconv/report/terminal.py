"""An inspection for people who read a terminal: what it is, its exponents as bars, its figures as a table."""

from rich.console import Console
from rich.text import Text

from mxconv.report.inspection import Inspection
from mxconv.report.terminal_bars import print_histogram
from mxconv.report.terminal_table import figures_table
from mxconv.report.text import group_name, number, printable

MAX_ROW_HISTOGRAMS = 16
MAX_NOTES = 12


def print_inspection(inspection: Inspection, console: Console, *, row_histograms: bool = False) -> None:
    """Print the total's histogram and the table of groups.

    Args:
        inspection: what was found.
        console: where to print.
        row_histograms: also each group's own histogram, as long as they are not more than 16.
    """
    heading = f"{inspection.source}  ({inspection.kind}{', ' + inspection.commit[:12] if inspection.commit else ''})"
    console.print(Text(printable(heading), style="bold"), soft_wrap=True)
    total = inspection.total
    console.print(
        f"{total.num_tensors:,} tensors, {total.num_weights:,} weights; {total.num_quantized:,} tensors "
        f"{'are' if inspection.kind == 'package' else 'would be'} quantized.",
        highlight=False,
    )
    for note in (*inspection.notes, *([total.note] if total.note else [])):
        console.print(Text(f"note: {printable(note)}", style="yellow"), soft_wrap=True)
    console.print()
    if row_histograms and len(inspection.groups) <= MAX_ROW_HISTOGRAMS:
        for group in inspection.groups:
            print_histogram(group, group_name(group, inspection.per), console)
    elif row_histograms:
        console.print(
            f"{len(inspection.groups)} rows: histograms are printed for up to {MAX_ROW_HISTOGRAMS}. Narrow --tensor.\n",
            highlight=False,
        )
    if not row_histograms or len(inspection.groups) != 1:
        print_histogram(total, "all tensors" if total.num_tensors > 1 else inspection.tensors[0].name, console)
    console.print(figures_table(inspection, console))
    _print_legend(inspection, console)


def _print_legend(inspection: Inspection, console: Console) -> None:
    lines = [
        "bits: stored bits a weight of BSFP, with scales, escapes and padding. dB: signal to noise of the 4-bit draft, "
        "fitted table, paper's table, MXFP4.",
        "Sums of bits and dB count the tensors that are quantized, or where none is, the matrices that are kept.",
    ]
    lines += [f"{printable(tensor.name)}: {tensor.note}" for tensor in inspection.tensors if tensor.note]
    shown = (
        lines
        if len(lines) <= MAX_NOTES
        else [*lines[:MAX_NOTES], f"and {len(lines) - MAX_NOTES} more notes (all with --json)"]
    )
    for line in shown:
        console.print(Text(line, style="dim"), soft_wrap=False)
    total = inspection.total
    if total.drafts is not None and total.bsfp_draft_sqnr_db is not None:
        console.print(
            f"BSFP: {number(total.drafts.bsfp_bits_per_weight, 2)} bits a weight, draft "
            f"{number(total.bsfp_draft_sqnr_db, 2)} dB (MXFP4 {number(total.mxfp4_sqnr_db, 2)} dB).",
            highlight=False,
        )
