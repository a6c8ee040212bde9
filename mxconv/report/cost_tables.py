"""A cost report as tables of text: what the terminal prints and the page shows."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from mxconv.report.text import NOTHING, number, printable, rate

Members = dict[str, Any]
SHOWN_TOKENS = (1, 8)  # of the roofline's; all are in --json


@dataclass
class TextTable:
    """A title, columns and rows, ready to be shown; the first column is text, the others are figures."""

    title: str
    columns: tuple[str, ...]
    rows: list[list[str]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)  # below it
    verdict: str = ""
    sources: list[str] = field(default_factory=list)


def heading(report: Members) -> tuple[str, str]:
    """The hardware, and what is asked of it."""
    hardware, workload = report["hardware"], report["workload"]
    return (
        printable(f"{hardware['name']}: {hardware['description']}"),
        f"{hardware['read_bandwidth']:g} GB/s; batch {workload['batch']}, context {workload['context']:,}, "
        f"KV cache in {workload['kv_dtype']}",
    )


def report_tables(report: Members) -> Iterator[tuple[str, TextTable]]:
    """Every part that the report has, by name; `report` is what `mxconv.cost.report.cost_report` returns."""
    makers = {
        "speedup": _speedup,
        "throughput": _throughput,
        "accelerator": _accelerator,
        "roofline": _roofline,
    }
    yield "counts", _counts(report["counts"])
    for entry in report["models"]:
        table = makers[entry["model"]](entry)
        table.sources.append(f"source: {entry['source']}")
        yield entry["model"], table
    for surface in report.get("sweep", []):
        yield "sweep", _surface(surface)
    yield "advice", _advice(report["advice"])
    if "predictions" in report:
        yield "predictions", _predictions(report["predictions"])


def _counts(counts: Members) -> TextTable:
    outputs = counts["outputs"]
    table = TextTable(
        f"{outputs['num_parameters']:,} parameters, {outputs['num_active_parameters']:,} of them active for a token",
        ("a pass over one token", "weights, GB", "scales, GB", "KV cache, GB", "giga multiply-adds"),
    )
    for name, row in outputs["passes"].items():
        figures = [row[key] / 1e9 for key in ("weight_bytes", "scale_bytes", "kv_bytes", "multiply_adds")]
        table.rows.append([printable(name), *(f"{figure:.4g}" for figure in figures)])
    return table


def _speedup(entry: Members) -> TextTable:
    columns = ("hierarchy", "acceptance", "draft tokens", "draft cost", "verify cost", "tokens a round", "speed-up")
    table = TextTable("Speed-up", (*columns, "pays from"))
    for name, row in entry["outputs"].items():
        table.rows.append(
            [
                printable(name),
                _list(row["acceptance"], 3),
                _list(row["num_draft_tokens"], 2),
                f"{row['draft_cost']:.3f}",
                f"{row['verify_cost']:.3f}",
                f"{row['tokens_per_round']:.2f}",
                f"{row['speedup']:.2f}",
                number(row["break_even_acceptance"], 2),
            ]
        )
    return table


def _throughput(entry: Members) -> TextTable:
    if "note" in entry:
        return TextTable(f"Throughput: {entry['note']}", ())
    inputs = entry["inputs"]
    table = TextTable(
        f"Throughput of a batch of {inputs['batch']}, {inputs['num_draft_tokens']} draft tokens, "
        f"{inputs['flops_per_byte']:.0f} FLOPs a byte",
        ("draft", "layers", "acceptance", "tokens a round", "multiplier", "units saved of 10"),
    )
    for name, row in entry["outputs"].items():
        figures = [row[key] for key in ("acceptance", "tokens_per_round", "throughput_multiplier", "units_saved_of_10")]
        table.rows.append([name, str(row["draft_layers"]), *(f"{figure:.2f}" for figure in figures)])
    return table


def _accelerator(entry: Members) -> TextTable:
    outputs = entry["outputs"]
    table = TextTable(
        "SPEQ's machine",
        ("pass", "mega cycles", "of DRAM", "GB", "ms", "joules", "DRAM W", "buffers W", "array W"),
    )
    for name in ("plain", "draft", "verify"):
        row = outputs[name]
        table.rows.append(
            [
                name,
                f"{row['compute_cycles'] / 1e6:.2f}",
                f"{row['dram_cycles'] / 1e6:.2f}",
                f"{row['dram_bytes'] / 1e9:.3f}",
                f"{row['seconds'] * 1e3:.2f}",
                f"{row['joules']:.3f}",
                *(f"{row['watts'][module]:.2f}" for module in ("dram", "buffers", "array")),
            ]
        )
    table.lines.append(
        f"Td/Tar {outputs['draft_ratio']:.4f}, speed-up {outputs['speedup']:.3f}, energy efficiency "
        f"{outputs['energy_efficiency']:.2f}; over Olive {outputs['speedup_over_olive']:.2f}, over Tender "
        f"{outputs['speedup_over_tender']:.2f}"
    )
    return table


def _roofline(entry: Members) -> TextTable:
    rates = ("a byte", "attainable, G/s", "peak, G/s", "ms", "bound")
    table = TextTable("Roofline", ("level", "kernel", "tokens", "GB", "giga multiply-adds", *rates))
    for name, rows in entry["outputs"].items():
        for row in (row for row in rows if row["num_tokens"] in SHOWN_TOKENS):
            table.rows.append(
                [
                    printable(name),
                    row["kernel"],
                    f"{row['num_tokens']:g}",
                    f"{row['num_bytes'] / 1e9:.4g}",
                    f"{row['multiply_adds'] / 1e9:.4g}",
                    f"{row['intensity']:.3g}",
                    f"{row['attainable']:.4g}",
                    f"{row['peak']:.4g}",
                    f"{row['seconds'] * 1e3:.3g}",
                    row["bound"],
                ]
            )
    return table


def _surface(surface: Members) -> TextTable:
    """Every fifth row and at most ten columns."""
    step = max(len(surface["columns"]) // 10, 1)
    columns = range(0, len(surface["columns"]), step)
    title = f"{surface['title']}: speed-up by {surface['row_name']} (down) and {surface['column_name']}"
    table = TextTable(title, ("", *(f"{surface['columns'][column]:g}" for column in columns)))
    for row in range(0, len(surface["rows"]), 5):
        values = surface["values"][row]
        table.rows.append([f"{surface['rows'][row]:g}", *(f"{values[column]:.2f}" for column in columns)])
    return table


def _advice(advice: Members) -> TextTable:
    columns = ("hierarchy", "acceptance", "draft tokens", "threshold", "tokens/s", "speed-up", "pays from")
    table = TextTable("Advice", columns, verdict=printable(advice["text"]))
    sources: dict[str, None] = {}
    for choice in advice["choices"]:
        table.rows.append(
            [
                printable(choice["strategy"]),
                _list(choice["acceptance"], 3),
                _list(choice["num_draft_tokens"], 2),
                number(choice["confidence"], 1),
                rate(choice["tokens_per_second"]),
                f"{choice['speedup']:.2f}",
                number(choice["break_even_acceptance"], 2),
            ]
        )
        for value, source in zip(choice["acceptance"], choice["acceptance_sources"], strict=True):
            sources[f"acceptance {value:g}: {printable(source)}"] = None
    table.sources.extend(sources)
    return table


def _predictions(predictions: Members) -> TextTable:
    rates = ("measured tokens/s", "predicted", "error", "Leviathan's equation", "error")
    passes = ("pass ms, measured", "predicted")
    has_trees = any(row["num_nodes"] != row["num_draft_tokens"] for row in predictions["strategies"])
    proposed = ("draft tokens", "nodes") if has_trees else ("draft tokens",)
    table = TextTable("Predicted and measured", ("trace", "levels", "acceptance", *proposed, *rates, *passes))
    for row in predictions["strategies"]:
        table.rows.append(
            [
                printable(row["strategy"]),
                printable(" <- ".join(row["levels"])),
                _list(row["acceptance"], 3),
                _list(row["num_draft_tokens"], 2),
                *([_list(row["num_nodes"], 2)] if has_trees else []),
                f"{row['measured_tokens_per_second']:.2f}",
                f"{row['predicted_tokens_per_second']:.2f}",
                f"{row['error']:+.1%}",
                f"{row['equation_tokens_per_second']:.2f}",
                f"{row['equation_error']:+.1%}",
                _list([1e3 * seconds for seconds in row["measured_pass_seconds"]], 2),
                _list([1e3 * seconds for seconds in row["predicted_pass_seconds"]], 2),
            ]
        )
    if has_trees:
        table.lines.append(
            "A tree's nodes are rows of the pass that judges them; draft tokens count its longest path, and acceptance "
            "is per place of it: that any of the siblings stands"
        )
    table.lines.extend(_prediction_lines(predictions["strategies"], predictions["mean_error"]))
    return table


def _prediction_lines(rows: list[Members], mean_error: float | None) -> Iterator[str]:
    """The mean error, and what it counts: not the traces whose target fits a cache."""
    cache = rows[0]["last_level_cache_bytes"]
    fitting = [row for row in rows if row["fits_cache"]]
    counted = _traces(len(rows) - len(fitting))
    fit, are = ("fits", "is") if len(fitting) == 1 else ("fit", "are")
    if cache is None:
        yield (
            f"Mean error {mean_error:.1%} over {counted}; the machine's description has no last_level_cache_bytes, so "
            "what fits a cache counts too"
        )
    elif not fitting:
        yield f"Mean error {mean_error:.1%} over {counted}"
    elif mean_error is None:
        yield f"No mean error: {len(rows)} of {_traces(len(rows))} {fit} the cache of {_megabytes(cache)}"
    else:
        held = f"{len(fitting)} {fit} the cache of {_megabytes(cache)} and {are} left out"
        yield f"Mean error {mean_error:.1%} over {counted}; {held}"
    if fitting:
        read = ", ".join(f"{printable(row['strategy'])} {_megabytes(row['num_bytes'])}" for row in fitting)
        yield f"A pass of the target reads from that cache, whose speed the roofline does not know: {read}"


def _traces(count: int) -> str:
    return f"{count} trace{'' if count == 1 else 's'}"


def _megabytes(num_bytes: float) -> str:
    return f"{num_bytes / 1e6:.3g} MB"


def _list(values: list[float], digits: int) -> str:
    return ", ".join(f"{value:.{digits}f}".rstrip("0").rstrip(".") for value in values) or NOTHING
