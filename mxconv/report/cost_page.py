"""A cost report as charts of speed-ups, throughput and a roofline, and as one HTML page with its tables.

Sources: the views are those of ML-SpecQD (arXiv 2503.13565), Figs. 2, 3 and 8, and of SPIRe (arXiv 2504.06419),
Figs. 4 and 6.
"""

from dataclasses import replace
from typing import Any, Literal

from mxconv.cost.answers import Question, body_of, intensity_of, speedup_surfaces
from mxconv.cost.levels import can_run, level_count, pass_points
from mxconv.cost.surfaces import Surface, throughput_surface
from mxconv.cost.throughput import SPIRE_DRAFTS
from mxconv.errors import MxconvError
from mxconv.report.charts import Chart, plain, roofline
from mxconv.report.cost_tables import heading, report_tables
from mxconv.report.page import PageSection, render_page
from mxconv.report.tables import TextTable, printable

Figure = Literal["draft", "two-drafts", "throughput-maps", "roofline"]
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


def render_cost_page(question: Question, report: dict[str, Any]) -> str:
    """The text of a page with the tables and charts of every model; `report` is the answer to the question."""
    tables = dict[str, list[TextTable]]()
    for name, table in report_tables(report):
        tables.setdefault(name, []).append(table)
    sections = {name: PageSection(title, tables=tables[name]) for name, title in TITLES.items() if name in tables}
    depths = {len(levels) for levels in question.runnable.values()}
    by_depth: dict[int, Figure] = {2: "draft", 3: "two-drafts"}
    figures: dict[str, list[Figure]] = {
        "speedup": [figure for depth, figure in by_depth.items() if depth in depths],
        "throughput": [] if question.architecture.num_experts else ["throughput-maps"],
        "roofline": ["roofline"],
    }
    for name in figures.keys() & sections.keys():
        drawn = [cost_charts(question, figure) for figure in figures[name]]
        sections[name].charts = [chart for _, charts in drawn for chart in charts]
        sections[name].charts_title = drawn[0][0] if drawn else ""
    title = f"{printable(question.architecture.model_type)} on {printable(question.hardware.name)}: cost"
    return render_page(title, heading(report), (), list(sections.values()))


def cost_charts(question: Question, figure: Figure) -> tuple[str, list[Surface] | list[Chart]]:
    """The title and the charts of a figure, from the question's model, hardware and strategies.

    Raises:
        MxconvError: no strategy with as many drafts, or experts, which SPIRe's equation does not know.
    """
    hardware = question.hardware
    if figure == "roofline":
        return f"Roofline: {hardware.description}", [_roofline(question)]
    if figure == "throughput-maps":
        model, intensity, window = question.architecture, intensity_of(hardware), question.workload.window
        if model.num_experts:
            raise MxconvError(
                "--figure throughput-maps: a mixture of experts; a dense decoder is required. Choose another figure."
            )
        contexts = [context for context in CONTEXTS if context <= max(model.max_position_embeddings, 1 << 13)]
        title = (
            f"Throughput over plain decoding: {model.model_type}, 4 draft tokens, sparse caches with a window of "
            f"{window:,}, {hardware.name} ({intensity:.0f} FLOPs a byte)"
        )
        return title, [throughput_surface(body_of(model), each, contexts, intensity, window) for each in SPIRE_DRAFTS]
    found = speedup_surfaces(question, 1 if figure == "draft" else 2)
    if not found:
        raise MxconvError(
            f"--figure {figure}: no hierarchy with so many drafts; one is required. Choose another figure."
        )
    title = f"Speed-up over plain decoding, ML-SpecQD Eq. (1), {hardware.name}"
    return title, [replace(surface, title=f"{plain(name)}\n{surface.title}") for name, surface in found.items()]


def _roofline(question: Question) -> Chart:
    """Attainable multiply-adds a second over multiply-adds a byte, each level at 1 to 16 tokens."""
    hardware, found = question.hardware, dict[str, list[tuple[float, float]]]()
    for level in question.levels:
        if level.architecture is not None and can_run(hardware, level):
            counts = [level_count(level, question.workload, tokens) for tokens in ROOFLINE_TOKENS]
            pairs = [pass_points(hardware, level.codec, count) for count in counts]
            for place, name in enumerate((plain(f"{level.name} ({level.codec})"), "attention")):
                found[name] = [(pair[place].intensity, pair[place].attainable) for pair in pairs]
    x_label = f"multiply-adds a byte (points: {', '.join(map(str, ROOFLINE_TOKENS))} tokens)"
    return roofline("attainable", x_label, found, hardware.peaks, hardware.read_bandwidth)
