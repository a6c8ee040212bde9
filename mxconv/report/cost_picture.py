"""A cost report as pictures of speed-ups, throughput and a roofline, and as one HTML page with its tables.

Sources: the views are those of ML-SpecQD (arXiv 2503.13565), Figs. 2, 3 and 8, and of SPIRe (arXiv 2504.06419),
Figs. 4 and 6.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from mxconv.cost.answers import Question, body_of, intensity_of, speedup_surfaces
from mxconv.cost.levels import can_run, level_count
from mxconv.cost.roofline import pass_points
from mxconv.cost.surfaces import Surface, throughput_surface
from mxconv.cost.throughput import SPIRE_DRAFTS
from mxconv.errors import MxconvError
from mxconv.report.cost_tables import heading, report_tables
from mxconv.report.html_page import PageSection, render_page
from mxconv.report.picture import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILION, label_log_axis, picture_uri, plain
from mxconv.report.tables import TextTable, printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLES = ((BLUE, "o"), (ORANGE, "s"), (GREEN, "^"), (VERMILION, "D"), (PURPLE, "P"), (SKY, "v"))
CONTEXTS = [2**power for power in range(10, 21)]
ROOFLINE_TOKENS = (1, 2, 4, 8, 16)


TITLES = {
    "speedup": "Speed-up",
    "predictions": "Predicted and measured",
    "throughput": "Throughput",
    "accelerator": "Accelerator",
    "roofline": "Roofline",
    "counts": "Counts",
    "sweep": "Sweep",
}
DESCRIPTIONS = {
    "draft": "Speed-up over the accepted share and the length of a draft",
    "two-drafts": "Speed-up over the accepted shares of two drafts",
    "throughput-maps": "Throughput over batch and context, by draft",
    "roofline": "Multiply-adds a second over multiply-adds a byte",
}


def render_cost_page(question: Question, report: dict[str, Any]) -> str:
    """The text of a page with the tables and pictures of every model; `report` is the answer to the question."""
    tables = dict[str, list[TextTable]]()
    for name, table in report_tables(report):
        tables.setdefault(name, []).append(table)
    depths = {len(levels) for levels in question.runnable.values()}
    figures = {
        "speedup": [figure for depth, figure in ((2, "draft"), (3, "two-drafts")) if depth in depths],
        "throughput": [] if question.architecture.num_experts else ["throughput-maps"],
        "roofline": ["roofline"],
    }
    sections = []
    for name, title in TITLES.items():
        if name in tables:
            uris = {f: picture_uri(partial(draw_figure, name=f, question=question)) for f in figures.get(name, [])}
            pictures = [(DESCRIPTIONS[figure], uri) for figure, uri in uris.items()]
            sections.append(PageSection(title, pictures=pictures, tables=tables[name]))
    title = f"{printable(question.architecture.model_type)} on {printable(question.hardware.name)}: cost"
    return render_page(title, heading(report), (), sections)


def draw_figure(figure: "Figure", name: str, question: Question) -> None:
    """Draw one figure.

    Args:
        figure: where.
        name: draft, two-drafts, throughput-maps or roofline.
        question: its model, hardware and strategies are what is drawn.

    Raises:
        MxconvError: no strategy with as many drafts, or experts, which SPIRe's equation does not know.
    """
    machine = question.hardware.name
    if name == "roofline":
        _draw_roofline(figure, question)
    elif name == "throughput-maps":
        model, intensity, window = question.architecture, intensity_of(question.hardware), question.workload.window
        if model.num_experts:
            raise MxconvError(
                "--figure throughput-maps: a mixture of experts; a dense decoder is required. Choose another figure."
            )
        contexts = [context for context in CONTEXTS if context <= max(model.max_position_embeddings, 1 << 13)]
        maps = [throughput_surface(body_of(model), draft, contexts, intensity, window) for draft in SPIRE_DRAFTS]
        title = f"{model.model_type}, 4 draft tokens, sparse caches with a window of {window:,}"
        _draw_surfaces(figure, maps, f"{title}, {machine} ({intensity:.0f} FLOPs a byte)")
    else:
        found = speedup_surfaces(question, 1 if name == "draft" else 2)
        if not found:
            raise MxconvError(
                f"--figure {name}: no hierarchy with so many drafts; one is required. Choose another figure."
            )
        panels = [replace(surface, title=f"{plain(level)}\n{surface.title}") for level, surface in found.items()]
        title = f"Speed-up by {'a draft' if name == 'draft' else 'two drafts'}, ML-SpecQD Eq. (1)"
        _draw_surfaces(figure, panels, f"{title}, {machine}")


def _draw_surfaces(figure: "Figure", surfaces: Sequence[Surface], title: str) -> None:
    """Draw each surface as a map whose colours turn where speculation begins to pay, with the figure in each cell."""
    from matplotlib.colors import TwoSlopeNorm

    figure.set_size_inches(max(5.2 * len(surfaces) + 0.8, 6.0), 5)
    axes = list(figure.subplots(1, len(surfaces), squeeze=False).flat)
    top = max(max(max(row) for row in surface.values) for surface in surfaces)
    norm = TwoSlopeNorm(1.0, 0.0, max(top, 1.2))
    for panel, surface in zip(axes, surfaces, strict=True):
        rows, columns = _some(surface.rows), _some(surface.columns)
        shown = [[surface.values[row][column] for column in columns] for row in rows]
        image = panel.imshow(shown, origin="lower", aspect="auto", cmap="RdBu", norm=norm)
        for row, values in enumerate(shown):
            for column, value in enumerate(values):
                shade = "white" if value < 0.35 or value > 1 + 0.7 * (top - 1) else "black"
                panel.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=7, color=shade)
        panel.set_xticks(range(len(columns)), [_short(surface.columns[place]) for place in columns], fontsize=8)
        panel.set_yticks(range(len(rows)), [_short(surface.rows[place]) for place in rows], fontsize=8)
        panel.set_xlabel(surface.column_name)
        panel.set_ylabel(surface.row_name)
        panel.set_title(surface.title, fontsize=8)
    figure.colorbar(image, ax=axes, label="over plain decoding")
    figure.suptitle(title, fontsize=11, fontweight="bold")


def _some(values: Sequence[float]) -> range:
    """At most eleven places, evenly apart."""
    return range(0, len(values), -(-len(values) // 11))


def _short(value: float) -> str:
    return f"{value / 1024:g}K" if value >= 1024 else f"{value:g}"


def _draw_roofline(figure: "Figure", question: Question) -> None:
    """Attainable multiply-adds a second over multiply-adds a byte, each level at 1 to 16 tokens."""
    hardware = question.hardware
    figure.set_size_inches(8.6, 5.2)
    axes = figure.subplots()
    found = {}
    for level in question.levels:
        if level.architecture is not None and can_run(hardware, level):
            counts = [level_count(level, question.workload, tokens) for tokens in ROOFLINE_TOKENS]
            pairs = [pass_points(hardware, level.codec, count) for count in counts]
            found[plain(f"{level.name} ({level.codec})")] = [matrices for matrices, _ in pairs]
            found["attention"] = [attention for _, attention in pairs]
    points = [point for own in found.values() for point in own]
    low, high = min(p.intensity for p in points) / 2, max(p.intensity for p in points) * 4
    _draw_roofs(axes, hardware.peaks, hardware.read_bandwidth, low, high)
    for (name, own), (colour, marker) in zip(found.items(), STYLES * 2, strict=False):
        x, y = [p.intensity for p in own], [p.attainable for p in own]
        axes.plot(x, y, color=colour, marker=marker, ms=5, lw=0.8, label=name)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(low, high)
    for axis in (axes.xaxis, axes.yaxis):
        label_log_axis(axis)
    axes.set_xlabel(f"multiply-adds a byte (points: {', '.join(map(str, ROOFLINE_TOKENS))} tokens)")
    axes.set_ylabel("giga multiply-adds a second, attainable")
    axes.grid(alpha=0.25)
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle(f"Roofline: {hardware.description}", fontsize=11, fontweight="bold")


def _draw_roofs(axes: "Axes", peaks: dict[Any, float], bandwidth: float, low: float, high: float) -> None:
    by_peak: dict[float, str] = {}
    for form, peak in peaks.items():
        by_peak[peak] = f"{by_peak[peak]}, {form}" if peak in by_peak else form
    top = max(peaks.values()) / bandwidth
    axes.plot([low, min(top, high)], [bandwidth * low, bandwidth * min(top, high)], color=GREY, lw=1.2)
    middle = (low * low * min(top, high)) ** (1 / 3)
    style: dict[str, Any] = {"textcoords": "offset points", "color": GREY, "ha": "right"}
    axes.annotate(f"{bandwidth:g} GB/s", (middle, middle * bandwidth), (-4, 4), **style)
    for peak, forms in by_peak.items():
        if peak / bandwidth < high:
            axes.plot([peak / bandwidth, high], [peak, peak], color=GREY, lw=1.2, ls=":")
            axes.annotate(f"{forms} {peak:g}", (high, peak), (-4, 3), fontsize=8, **style)
