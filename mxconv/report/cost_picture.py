"""A cost report as pictures of speed-ups, throughput and a roofline, and as one HTML page with its tables.

Sources: the views are those of ML-SpecQD (arXiv 2503.13565), Figs. 2, 3 and 8, and of SPIRe (arXiv 2504.06419),
Figs. 4 and 6.
"""

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
LINES = (1.5, 2, 2.5, 3, 4, 6, 8, 12, 16)  # speed-ups that surfaces name


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
    if name == "throughput-maps":
        _draw_maps(figure, question)
    elif name == "roofline":
        _draw_roofline(figure, question)
    else:
        surfaces = speedup_surfaces(question, 1 if name == "draft" else 2)
        if not surfaces:
            raise MxconvError(
                f"--figure {name}: no hierarchy with so many drafts; one is required. Choose another figure."
            )
        title = f"Speed-up by {'a draft' if name == 'draft' else 'two drafts'}, ML-SpecQD Eq. (1)"
        _draw_surfaces(figure, surfaces, f"{title}, {question.hardware.name}")


def _draw_surfaces(figure: "Figure", panels: dict[str, Surface], title: str) -> None:
    figure.set_size_inches(max(4.3 * len(panels) + 0.8, 6.0), 4.4)
    axes = list(figure.subplots(1, len(panels), squeeze=False).flat)
    top = max(max(max(row) for row in surface.values) for surface in panels.values())
    for panel, (name, surface) in zip(axes, panels.items(), strict=True):
        colours = panel.contourf(
            surface.columns, surface.rows, surface.values, levels=_steps(top), cmap="RdBu", norm=_around_one(top)
        )
        colours.set_rasterized(True)  # as paths an SVG of it is ten times as large
        for levels, width, form in (([1.0], 1.2, "as fast"), (LINES, 0.5, "%g")):
            lines = panel.contour(
                surface.columns, surface.rows, surface.values, levels=levels, colors="black", linewidths=width
            )
            panel.clabel(lines, fmt=form, fontsize=8)
        panel.set_title(f"{plain(name)}\n{surface.title}", fontsize=8)
        panel.set_xlabel(surface.column_name)
        panel.set_ylabel(surface.row_name)
    bar = figure.colorbar(colours, ax=axes, label="speed-up over plain decoding")
    ticks = [0, 0.25, 0.5, 0.75, *_apart(top)]
    bar.set_ticks(ticks, labels=[f"{tick:g}" for tick in ticks])
    figure.suptitle(title, fontsize=11, fontweight="bold")


def _steps(top: float) -> list[float]:
    """Twelve below one and as many above: the colours turn where speculation begins to pay."""
    return [step / 12 for step in range(12)] + [1 + step / 12 * (max(top, 1.2) - 1) for step in range(13)]


def _apart(top: float) -> list[float]:
    """One, and those of the named speed-ups that have room for a label each."""
    found = [1.0]
    for line in LINES:
        if line <= top and line - found[-1] >= (top - 1) / 9:
            found.append(line)
    return found


def _around_one(top: float) -> Any:
    from matplotlib.colors import TwoSlopeNorm

    return TwoSlopeNorm(1.0, 0.0, max(top, 1.2))


def _draw_maps(figure: "Figure", question: Question) -> None:
    """Throughput over batch and context, a map a draft of SPIRe's."""
    model, intensity = question.architecture, intensity_of(question.hardware)
    if model.num_experts:
        raise MxconvError(
            "--figure throughput-maps: a mixture of experts; a dense decoder is required. Choose another figure."
        )
    contexts = [context for context in CONTEXTS if context <= max(model.max_position_embeddings, 1 << 13)]
    body, window = body_of(model), question.workload.window
    surfaces = [throughput_surface(body, name, contexts, intensity, window) for name in SPIRE_DRAFTS]
    figure.set_size_inches(16, 5)
    axes = list(figure.subplots(1, len(surfaces), squeeze=False).flat)
    top = max(max(max(row) for row in surface.values) for surface in surfaces)
    for panel, surface in zip(axes, surfaces, strict=True):
        image = panel.imshow(surface.values, origin="lower", aspect="auto", cmap="RdBu", norm=_around_one(top))
        for row, values in enumerate(surface.values):
            for column, value in enumerate(values):
                shade = "white" if value < 0.35 or value > 1 + 0.7 * (top - 1) else "black"
                panel.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=7, color=shade)
        panel.set_xticks(range(len(contexts)), [f"{context // 1024}K" for context in contexts], fontsize=8)
        panel.set_yticks(range(len(surface.rows)), [f"{batch:g}" for batch in surface.rows], fontsize=8)
        panel.set_title(surface.title)
        panel.set_xlabel("context (positions; K is 1,024)")
        panel.set_ylabel("batch (sequences)")
    figure.colorbar(image, ax=axes, label="throughput over plain decoding")
    machine = f"{question.hardware.name} ({intensity:.0f} FLOPs a byte)"
    title = f"{model.model_type}, 4 draft tokens, sparse caches with a window of {window:,}, {machine}"
    figure.suptitle(title, fontsize=11, fontweight="bold")


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
