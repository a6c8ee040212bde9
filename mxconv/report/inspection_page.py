"""An inspection as a picture and as one HTML page: where the exponents lie, and how near each 4-bit draft comes."""

from pathlib import Path
from typing import TYPE_CHECKING

from mxconv.report.exponents import ExponentCounts
from mxconv.report.html_page import PageSection, render_page
from mxconv.report.inspection import Inspection
from mxconv.report.inspection_tables import (
    LEGEND,
    counted,
    group_name,
    group_table,
    heading,
    notes,
    tensor_table,
    window_line,
)
from mxconv.report.picture import BLUE, GREEN, GREY, ORANGE, VERMILION, picture_uri, plain, write_picture
from mxconv.report.tables import percent
from mxconv.report.weight_statistics import Statistics

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DRAFTS = (  # markers tell them apart without colour
    ("BSFP, fitted table", "bsfp_draft_sqnr_db", BLUE, "o"),
    ("MXFP4", "mxfp4_sqnr_db", ORANGE, "s"),
    ("BSFP, paper's table", "bsfp_paper_draft_sqnr_db", GREEN, "^"),
)
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
MAX_GROUPS = 160  # a taller picture cannot be read any more
INCHES_PER_GROUP = 0.24


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
    uri = picture_uri(lambda figure: draw_inspection(figure, inspection))
    description = f"Weights by exponent field of {exponents.float_format.name}, and the drafts by {inspection.per}"
    return PageSection("Exponents of all tensors", [window_line(exponents)], facts, [(description, uri)])


def write_inspection_picture(inspection: Inspection, path: Path) -> None:
    """Draw the exponents and the drafts of an inspection; an existing file is overwritten.

    Raises:
        MxconvError: another suffix than .png or .svg.
    """
    write_picture(path, lambda figure: draw_inspection(figure, inspection))


def draw_inspection(figure: "Figure", inspection: Inspection) -> None:
    """Draw the exponents of all tensors, and the signal-to-noise ratios of the drafts by group."""
    rows = [group for group in inspection.groups if group.bsfp_draft_sqnr_db is not None]
    rows = [*rows[:MAX_GROUPS], inspection.total]
    figure.set_size_inches(12, max(4.8, 1.8 + INCHES_PER_GROUP * len(rows)))
    left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
    left.set_title("Exponents of all tensors" if inspection.total.num_tensors > 1 else "Exponents")
    draw_exponents(left, inspection.total.exponents)
    _draw_drafts(right, inspection, rows)
    handles, labels = right.get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower right", ncols=3, frameon=False)
    figure.suptitle(plain(f"{inspection.source} ({inspection.kind})"), fontsize=11, fontweight="bold")


def draw_exponents(axes: "Axes", exponents: ExponentCounts | None) -> None:
    """Draw how many weights each exponent field has, and the window of 16 of them."""
    if exponents is None or exponents.window is None:
        axes.text(0.5, 0.5, "no 16-bit weights to count", ha="center", va="center", transform=axes.transAxes)
        axes.set_axis_off()
        return
    low, high = exponents.window
    axes.axvspan(low - 0.5, high + 0.5, color=BLUE, alpha=0.1, lw=0)
    counts = exponents.nonzero
    fields = [field for field in range(len(counts)) if counts[field]]
    colours = [BLUE if low <= field <= high else VERMILION for field in fields]
    axes.bar(fields, [int(counts[field]) for field in fields], color=colours, width=0.85)
    first, last = min(low, fields[0]), max(high, fields[-1])
    if exponents.scale == "log":
        axes.set_yscale("log")
        axes.set_ylim(0.5, 8 * counts.max())
    else:
        axes.set_ylim(0, 1.25 * counts.max())
    axes.set_xlim(first - 1, last + 1)
    axes.set_ylabel(f"weights ({exponents.scale} scale)")
    axes.yaxis.set_major_formatter(lambda count, _: f"{count:,.0f}")
    step = max(1, -(-(last - first) // 16))
    ticks = [field for field in range(first, last + 1) if (high - field) % step == 0]
    axes.set_xticks(ticks, [str(field) for field in ticks])
    axes.set_xlabel(f"exponent field of {exponents.float_format.name}")
    top = axes.secondary_xaxis("top")
    top.set_xlabel("least magnitude of the exponent")
    upper = ticks[:: 2 if len(ticks) > 9 else 1]
    top.set_xticks(upper, [f"2{str(exponents.value_exponent(field)).translate(SUPERSCRIPTS)}" for field in upper])
    top.spines["top"].set_visible(False)
    top.tick_params(length=0, pad=0)
    held = percent(1 - exponents.num_outside_window / exponents.num_nonzero)
    text = f"window {low}..{high}: {held} of the non-zero weights\n"
    text += f"outside (red): {int(counts[:low].sum()):,} below, {int(counts[high + 1 :].sum()):,} above"
    axes.text(0.02, 0.97, text, transform=axes.transAxes, va="top", color=GREY)


def _draw_drafts(axes: "Axes", inspection: Inspection, rows: list[Statistics]) -> None:
    axes.set_title(f"4-bit drafts by {inspection.per}")
    if all(row.drafts is None for row in rows):
        axes.text(0.5, 0.5, "no matrix to draft from", ha="center", va="center", transform=axes.transAxes)
        axes.set_axis_off()
        return
    positions = list(range(len(rows)))
    names = ["total" if row is inspection.total else group_name(row, inspection.per) for row in rows]
    for position, row in zip(positions, rows, strict=True):
        values = [value for _, key, _, _ in DRAFTS if (value := getattr(row, key)) is not None]
        if values:
            axes.plot([min(values), max(values)], [position, position], color=GREY, alpha=0.3, lw=1, zorder=1)
    for label, key, colour, marker in DRAFTS:
        points = [(position, getattr(row, key)) for position, row in zip(positions, rows, strict=True)]
        found = [(position, value) for position, value in points if value is not None]
        x, y = [value for _, value in found], [position for position, _ in found]
        if key == "bsfp_draft_sqnr_db":
            for position, value in found:
                axes.annotate(f"{value:.1f}", (value, position), (6, 0), textcoords="offset points", va="center")
        axes.scatter(x, y, color=colour, marker=marker, s=28, label=label, zorder=2)
    axes.set_yticks(positions, [plain(name) for name in names])
    axes.get_yticklabels()[-1].set_fontweight("bold")
    axes.axhline(len(rows) - 1.5, color=GREY, lw=0.6)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.margins(x=0.1)
    axes.set_xlabel("signal to noise of the draft (dB), higher is better")
    axes.grid(axis="x", alpha=0.25)
