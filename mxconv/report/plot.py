"""An inspection as a picture: where the exponents lie, and how near each 4-bit draft comes. PNG or SVG."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mxconv.errors import MxconvError
from mxconv.report.bars import bar_chart
from mxconv.report.inspection import Inspection
from mxconv.report.statistics import Statistics
from mxconv.report.text import group_name, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

SUFFIXES = (".png", ".svg")
# the Okabe-Ito colours, told apart by people with any colour vision; markers tell them apart without colour
BLUE, ORANGE, GREEN, VERMILION, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#555555"
DRAFTS = (
    ("BSFP, fitted table", "bsfp_draft_sqnr_db", BLUE, "o"),
    ("MXFP4", "mxfp4_sqnr_db", ORANGE, "s"),
    ("BSFP, paper's table", "bsfp_paper_draft_sqnr_db", GREEN, "^"),
)
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
MAX_GROUPS = 160  # a taller picture cannot be read any more
INCHES_PER_GROUP = 0.24
SETTINGS: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "mxconv",  # the same bytes for the same figures
    "text.parse_math": False,  # a tensor's name is no formula
}


def label_log_axis(axis: "Axis") -> None:
    """Plain numbers at powers of ten and at two and five times them; by itself matplotlib writes formulas between."""
    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_formatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in "25" else "")


def check_suffix(path: Path) -> None:
    """Raises MxconvError unless the file's name says PNG or SVG."""
    if path.suffix.lower() not in SUFFIXES:
        raise MxconvError(
            f"{path}: a picture that ends in {path.suffix!r}; .png or .svg is required. Choose one of the two."
        )


def write_plot(inspection: Inspection, path: Path) -> None:
    """Draw both panels and write them; an existing file is overwritten.

    Raises:
        MxconvError: another suffix than .png or .svg.
    """
    check_suffix(path)
    # imported here: it takes a second, and only pictures need it
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = [group for group in inspection.groups if group.bsfp_draft_sqnr_db is not None]
    rows = [*rows[:MAX_GROUPS], inspection.total]
    height = max(4.8, 1.8 + INCHES_PER_GROUP * len(rows))
    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(12, height), layout="constrained")
        FigureCanvasAgg(figure)
        left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
        _draw_exponents(left, inspection.total)
        _draw_drafts(right, inspection, rows)
        handles, labels = right.get_legend_handles_labels()
        if handles:
            figure.legend(handles, labels, loc="outside lower right", ncols=3, frameon=False)
        figure.suptitle(_plain(f"{inspection.source} ({inspection.kind})"), fontsize=11, fontweight="bold")
        is_svg = path.suffix.lower() == ".svg"
        figure.savefig(path, dpi=150, format=path.suffix.lower()[1:], metadata={"Date": None} if is_svg else None)


def _draw_exponents(axes: "Axes", total: Statistics) -> None:
    axes.set_title("Exponents of all tensors" if total.num_tensors > 1 else "Exponents")
    chart = bar_chart(total.exponents) if total.exponents is not None else None
    if chart is None or total.exponents is None:
        axes.text(0.5, 0.5, "no 16-bit weights to count", ha="center", va="center", transform=axes.transAxes)
        axes.set_axis_off()
        return
    exponents = total.exponents
    low, high = chart.window
    axes.axvspan(low - 0.5, high + 0.5, color=BLUE, alpha=0.1, lw=0)
    counts = exponents.nonzero
    fields = [field for field in range(len(counts)) if counts[field]]
    colours = [BLUE if low <= field <= high else VERMILION for field in fields]
    axes.bar(fields, [int(counts[field]) for field in fields], color=colours, width=0.85)
    first, last = min(low, fields[0]), max(high, fields[-1])
    if chart.scale == "log":
        axes.set_yscale("log")
        axes.set_ylim(0.5, 8 * counts.max())
    else:
        axes.set_ylim(0, 1.25 * counts.max())
    axes.set_xlim(first - 1, last + 1)
    axes.set_ylabel(f"weights ({chart.scale} scale)")
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
    text += f"outside (red): {chart.num_below:,} below, {chart.num_above:,} above"
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
    axes.set_yticks(positions, [_plain(name) for name in names])
    axes.get_yticklabels()[-1].set_fontweight("bold")
    axes.axhline(len(rows) - 1.5, color=GREY, lw=0.6)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.margins(x=0.1)
    axes.set_xlabel("signal to noise of the draft (dB), higher is better")
    axes.grid(axis="x", alpha=0.25)


def _plain(text: str) -> str:
    """Text that the built-in font has glyphs for, at most 60 characters: the end of a name tells more."""
    plain = text.encode("ascii", "backslashreplace").decode()
    return plain if len(plain) <= 60 else f"...{plain[-57:]}"
