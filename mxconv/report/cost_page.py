"""A cost report as tables of text, for the terminal and the page; as charts of speed-ups, throughput and a roofline.

Sources: the views of the charts are those of ML-SpecQD (arXiv 2503.13565), Figs. 2, 3 and 8, and of SPIRe (arXiv
2504.06419), Figs. 4 and 6.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

from rich.console import Console

from mxconv.cost.answers import Question, body_of, counted, intensity_of, speedup_surfaces
from mxconv.cost.levels import can_run, level_count, pass_points
from mxconv.cost.surfaces import Surface, throughput_surface
from mxconv.cost.throughput import SPIRE_DRAFTS
from mxconv.errors import MxconvError
from mxconv.report.charts import Chart, PageSection, plain, render_page, roofline
from mxconv.report.tables import TextTable, print_table, printable

Members = dict[str, Any]
SHOWN_TOKENS = (1, 8)  # of the roofline; `--json` has all
TITLES = {"throughput": "Throughput", "accelerator": "SPEQ's accelerator"}
COUNTS = {
    "a pass over one token": ("name",),
    "weights, GB": ("weight_bytes", ".4g", 1e-9),
    "scales, GB": ("scale_bytes", ".4g", 1e-9),
    "KV cache, GB": ("kv_bytes", ".4g", 1e-9),
    "giga multiply-adds": ("multiply_adds", ".4g", 1e-9),
}
SPEEDUP = {
    "hierarchy": ("name",),
    "acceptance": (lambda row: ", ".join(map(_told, row["acceptance"], row["acceptance_is_assumed"])) or None,),
    "draft tokens": ("num_draft_tokens", ".3g"),
    "draft cost": ("draft_cost", ".3f"),
    "verify cost": ("verify_cost", ".3f"),
    "tokens a round": ("tokens_per_round", ".2f"),
    "tokens/s": ("tokens_per_second", ",.4g"),
    "over its target": ("speedup", ".2f"),
    "over plain": ("speedup_over_baseline", ".2f"),
    "pays from": ("break_even_acceptance", ".2f"),
}
THROUGHPUT = {
    "draft": ("name",),
    "layers": ("draft_layers",),
    "positions read": ("positions", ",d"),
    "acceptance": ("acceptance", ".2f"),
    "tokens a round": ("tokens_per_round", ".2f"),
    "multiplier": ("throughput_multiplier", ".2f"),
    "units saved of 10": ("units_saved_of_10", ".2f"),
}
ACCELERATOR = {
    "pass": ("name",),
    "mega cycles": ("compute_cycles", ".2f", 1e-6),
    "of DRAM": ("dram_cycles", ".2f", 1e-6),
    "GB": ("dram_bytes", ".3f", 1e-9),
    "ms": ("seconds", ".2f", 1e3),
    "joules": ("joules", ".3f"),
    "DRAM W": ("dram", ".2f"),
    "buffers W": ("buffers", ".2f"),
    "array W": ("array", ".2f"),
    "chip W": ("chip_watts", ".2f"),
}
ROOFLINE = {
    "level": ("name",),
    "kernel": ("kernel",),
    "tokens": ("num_tokens", "g"),
    "GB": ("num_bytes", ".4g", 1e-9),
    "giga multiply-adds": ("multiply_adds", ".4g", 1e-9),
    "a byte": ("intensity", ".3g"),
    "attainable, G/s": ("attainable", ".4g"),
    "peak, G/s": ("peak", ".4g"),
    "ms": ("seconds", ".3g", 1e3),
    "bound": ("bound",),
}
PREDICTIONS = {
    "trace": ("strategy",),
    "levels": ("levels",),
    "acceptance": ("acceptance", ".3g"),
    "draft tokens": ("num_draft_tokens", ".3g"),
    "nodes": ("num_nodes", ".3g"),
    "measured tokens/s": ("measured_tokens_per_second", ".2f"),
    "predicted": ("predicted_tokens_per_second", ".2f"),
    "error": ("error", "+.1%"),
    "Leviathan's equation": ("equation_tokens_per_second", ".2f"),
    "its error": ("equation_error", "+.1%"),
    "pass ms, measured": ("measured_pass_seconds", ".2f", 1e3),
    "pass ms, predicted": ("predicted_pass_seconds", ".2f", 1e3),
}


def print_report(report: Members, console: Console) -> None:
    """Print every part of what `mxconv.cost.answers.cost_report` returns."""
    hardware, workload = heading(report)
    print_table(TextTable(hardware, lines=[workload]), console)
    for _, table in report_tables(report):
        print_table(table, console)


def heading(report: Members) -> tuple[str, str]:
    """The hardware and the workload of a report, a line each."""
    hardware, workload = report["hardware"], report["workload"]
    return (
        printable(f"{hardware['name']}: {hardware['description']}"),
        f"{hardware['read_bandwidth']:g} GB/s; batch {workload['batch']}, context {workload['context']:,}, "
        f"KV cache in {workload['kv_dtype']}",
    )


def report_tables(report: Members) -> Iterator[tuple[str, TextTable]]:
    """The tables of every part of a report, by the name of the part."""
    outputs = report["counts"]["outputs"]
    parameters = f"{outputs['num_parameters']:,} parameters, {outputs['num_active_parameters']:,} of them active"
    yield "counts", TextTable.of(f"{parameters} for a token", COUNTS, _named(outputs["passes"]))
    makers = {"speedup": _speedup, "throughput": _throughput, "accelerator": _accelerator, "roofline": _roofline}
    for entry in report["models"]:
        table = (
            TextTable(f"{TITLES[entry['model']]}: {entry['note']}")
            if "note" in entry and not entry["outputs"]
            else makers[entry["model"]](entry)
        )
        table.notes.append(f"source: {entry['source']}")
        yield entry["model"], table
    for surface in report.get("sweep", []):
        yield "sweep", _surface(surface)
    if "predictions" in report:
        yield "predictions", _predictions(report["predictions"])


def _named(rows: Members) -> list[Members]:
    return [{"name": name} | row for name, row in rows.items()]


def _speedup(entry: Members) -> TextTable:
    rows = _named(entry["outputs"])
    table = TextTable.of("Speed-up", SPEEDUP, sorted(rows, key=lambda row: -row["tokens_per_second"]))
    best = max(rows, key=lambda row: row["tokens_per_second"])
    verdict = f"{best['name']}, {best['speedup_over_baseline']:.2f} times {rows[0]['name']}"
    does_not_pay = len(rows) > 1 and not best["acceptance"]
    verdict += " at an assumed acceptance" if any(best["acceptance_is_assumed"]) else ""
    table.lines.append(printable(f"Fastest: {verdict}{'; speculation does not pay' if does_not_pay else ''}."))
    if left_out := ", ".join(entry["not_run"]):
        table.notes.append(printable(f"left out, since the hardware has no mode for a draft: {left_out}"))
    for row in rows:
        columns = (row["acceptance"], row["acceptance_is_assumed"], row["acceptance_sources"])
        for value, is_assumed, source in zip(*columns, strict=True):
            note = f"acceptance {_told(value, is_assumed)}: {printable(source)}"
            table.notes += [] if note in table.notes else [note]
    return table


def _told(acceptance: float, is_assumed: bool) -> str:
    """An acceptance, marked where it is not of this model."""
    return f"{acceptance:.3g}{' (assumed)' if is_assumed else ''}"


def _throughput(entry: Members) -> TextTable:
    inputs = entry["inputs"]
    title = (
        f"Throughput of a batch of {inputs['batch']}, {inputs['num_draft_tokens']} draft tokens, "
        f"{inputs['flops_per_byte']:.0f} FLOPs a byte; sparse caches keep a window of {inputs['window']:,} and one sink"
    )
    return TextTable.of(title, THROUGHPUT, _named(entry["outputs"]))


def _accelerator(entry: Members) -> TextTable:
    inputs, outputs = entry["inputs"], entry["outputs"]
    passes = {name: outputs[name] | outputs[name]["watts"] for name in ("plain", "draft", "verify")}
    table = TextTable.of("SPEQ's accelerator", ACCELERATOR, _named(passes))
    table.lines.append(
        f"Td/Tar {outputs['draft_ratio']:.4f}, speed-up {outputs['speedup']:.3f} at an acceptance of "
        f"{_told(inputs['acceptance'], inputs['acceptance_is_assumed'])}, energy efficiency "
        f"{outputs['energy_efficiency']:.2f}; over Olive {outputs['speedup_over_olive']:.2f}, over Tender "
        f"{outputs['speedup_over_tender']:.2f}"
    )
    table.lines.append(
        f"Energies are assumed; most of the chip's watts are its buffers', {inputs['sram_picojoules_per_byte']:g} pJ a "
        "byte at DRAM's rate. SPEQ's Table IV prints 0.56 W (full mode) and 0.51 W (quantize mode). A token takes one "
        f"tile, so that {inputs['num_tiles'] - 1:g} of {inputs['num_tiles']:g} are idle while drafts are made."
    )
    return table


def _roofline(entry: Members) -> TextTable:
    rows = [{"name": name} | row for name, points in entry["outputs"].items() for row in points]
    return TextTable.of("Roofline", ROOFLINE, [row for row in rows if row["num_tokens"] in SHOWN_TOKENS])


def _surface(surface: Members) -> TextTable:
    """Every fifth row and at most ten columns of a surface."""
    columns = range(0, len(surface["columns"]), max(len(surface["columns"]) // 10, 1))
    title = f"{surface['title']}: speed-up by {surface['row_name']} (down) and {surface['column_name']}"
    table = TextTable(title, ["", *(f"{surface['columns'][column]:g}" for column in columns)])
    for row, values in list(zip(surface["rows"], surface["values"], strict=True))[::5]:
        table.rows.append([f"{row:g}", *(f"{values[column]:.2f}" for column in columns)])
    return table


def _predictions(predictions: Members) -> TextTable:
    rows = predictions["strategies"]
    table = TextTable.of("Predicted and measured", PREDICTIONS, rows)
    if any(row["num_nodes"] != row["num_draft_tokens"] for row in rows):
        table.lines.append(
            "The nodes of a tree are rows of the pass that verifies them; draft tokens count its longest path, and "
            "acceptance is that of any sibling at a depth."
        )
    for name, shares in predictions["acceptance_by_position"].items():
        if shares:
            table.lines.append(printable(f"{name}, acceptance by position: {', '.join(f'{s:.3f}' for s in shares)}"))
    fitting = [row for row in rows if row["fits_cache"]]
    error = predictions["mean_error"]
    found = "No mean error" if error is None else f"Mean error {error:.1%} over {len(counted(rows))} traces"
    if rows[0]["last_level_cache_bytes"] is None:
        found += "; the hardware's description has no last_level_cache_bytes, so targets that fit a cache count too"
    elif fitting:
        read = ", ".join(f"{row['strategy']} {row['num_bytes'] / 1e6:.3g} MB" for row in fitting)
        found += (
            f"; {len(fitting)} left out, whose target fits the cache of {rows[0]['last_level_cache_bytes'] / 1e6:.3g} "
            f"MB, of a speed that the roofline does not know: {read}"
        )
    table.lines.append(printable(found))
    for row in rows:
        if other := row["other_processor"]:
            table.lines.append(printable(f"{row['strategy']}: this trace is from another processor, {other}."))
    return table


Figure = Literal["draft", "two-drafts", "throughput-maps", "roofline"]
CONTEXTS = [2**power for power in range(10, 21)]
ROOFLINE_TOKENS = (1, 2, 4, 8, 16)
SECTIONS = {
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
    sections = {name: PageSection(title, tables=tables[name]) for name, title in SECTIONS.items() if name in tables}
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
        return f"Roofline: {hardware.description}", [_roofline_chart(question)]
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


def _roofline_chart(question: Question) -> Chart:
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
