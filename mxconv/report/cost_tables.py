"""The answers of the cost models as tables of text, for the terminal and the page."""

from collections.abc import Iterator
from typing import Any

from rich.console import Console

from mxconv.report.tables import Column, TextTable, print_table, printable

Members = dict[str, Any]
SHOWN_TOKENS = (1, 8)  # of the roofline; `--json` has all
COUNTS = {
    "a pass over one token": Column("name"),
    "weights, GB": Column("weight_bytes", ".4g", 1e-9),
    "scales, GB": Column("scale_bytes", ".4g", 1e-9),
    "KV cache, GB": Column("kv_bytes", ".4g", 1e-9),
    "giga multiply-adds": Column("multiply_adds", ".4g", 1e-9),
}
SPEEDUP = {
    "hierarchy": Column("name"),
    "acceptance": Column("acceptance", ".3g"),
    "draft tokens": Column("num_draft_tokens", ".3g"),
    "draft cost": Column("draft_cost", ".3f"),
    "verify cost": Column("verify_cost", ".3f"),
    "tokens a round": Column("tokens_per_round", ".2f"),
    "tokens/s": Column("tokens_per_second", ",.4g"),
    "over its target": Column("speedup", ".2f"),
    "over plain": Column("speedup_over_baseline", ".2f"),
    "pays from": Column("break_even_acceptance", ".2f"),
}
THROUGHPUT = {
    "draft": Column("name"),
    "layers": Column("draft_layers"),
    "acceptance": Column("acceptance", ".2f"),
    "tokens a round": Column("tokens_per_round", ".2f"),
    "multiplier": Column("throughput_multiplier", ".2f"),
    "units saved of 10": Column("units_saved_of_10", ".2f"),
}
ACCELERATOR = {
    "pass": Column("name"),
    "mega cycles": Column("compute_cycles", ".2f", 1e-6),
    "of DRAM": Column("dram_cycles", ".2f", 1e-6),
    "GB": Column("dram_bytes", ".3f", 1e-9),
    "ms": Column("seconds", ".2f", 1e3),
    "joules": Column("joules", ".3f"),
    "DRAM W": Column("dram", ".2f"),
    "buffers W": Column("buffers", ".2f"),
    "array W": Column("array", ".2f"),
}
ROOFLINE = {
    "level": Column("name"),
    "kernel": Column("kernel"),
    "tokens": Column("num_tokens", "g"),
    "GB": Column("num_bytes", ".4g", 1e-9),
    "giga multiply-adds": Column("multiply_adds", ".4g", 1e-9),
    "a byte": Column("intensity", ".3g"),
    "attainable, G/s": Column("attainable", ".4g"),
    "peak, G/s": Column("peak", ".4g"),
    "ms": Column("seconds", ".3g", 1e3),
    "bound": Column("bound"),
}
PREDICTIONS = {
    "trace": Column("strategy"),
    "levels": Column("levels"),
    "acceptance": Column("acceptance", ".3g"),
    "draft tokens": Column("num_draft_tokens", ".3g"),
    "nodes": Column("num_nodes", ".3g"),
    "measured tokens/s": Column("measured_tokens_per_second", ".2f"),
    "predicted": Column("predicted_tokens_per_second", ".2f"),
    "error": Column("error", "+.1%"),
    "Leviathan's equation": Column("equation_tokens_per_second", ".2f"),
    "its error": Column("equation_error", "+.1%"),
    "pass ms, measured": Column("measured_pass_seconds", ".2f", 1e3),
    "pass ms, predicted": Column("predicted_pass_seconds", ".2f", 1e3),
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
        table = makers[entry["model"]](entry)
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
    table.lines.append(printable(f"Fastest: {verdict}{'' if best['acceptance'] else '; speculation does not pay'}."))
    for row in rows:
        for value, source in zip(row["acceptance"], row["acceptance_sources"], strict=True):
            note = f"acceptance {value:g}: {printable(source)}"
            table.notes += [] if note in table.notes else [note]
    return table


def _throughput(entry: Members) -> TextTable:
    if "note" in entry:
        return TextTable(f"Throughput: {entry['note']}")
    inputs = entry["inputs"]
    title = (
        f"Throughput of a batch of {inputs['batch']}, {inputs['num_draft_tokens']} draft tokens, "
        f"{inputs['flops_per_byte']:.0f} FLOPs a byte"
    )
    return TextTable.of(title, THROUGHPUT, _named(entry["outputs"]))


def _accelerator(entry: Members) -> TextTable:
    outputs = entry["outputs"]
    passes = {name: outputs[name] | outputs[name]["watts"] for name in ("plain", "draft", "verify")}
    table = TextTable.of("SPEQ's accelerator", ACCELERATOR, _named(passes))
    table.lines.append(
        f"Td/Tar {outputs['draft_ratio']:.4f}, speed-up {outputs['speedup']:.3f}, energy efficiency "
        f"{outputs['energy_efficiency']:.2f}; over Olive {outputs['speedup_over_olive']:.2f}, over Tender "
        f"{outputs['speedup_over_tender']:.2f}"
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
    found = "No mean error" if error is None else f"Mean error {error:.1%} over {len(rows) - len(fitting)} traces"
    if rows[0]["last_level_cache_bytes"] is None:
        found += "; the hardware's description has no last_level_cache_bytes, so targets that fit a cache count too"
    elif fitting:
        read = ", ".join(f"{row['strategy']} {row['num_bytes'] / 1e6:.3g} MB" for row in fitting)
        found += (
            f"; {len(fitting)} left out, whose target fits the cache of {rows[0]['last_level_cache_bytes'] / 1e6:.3g} "
            f"MB, of a speed that the roofline does not know: {read}"
        )
    table.lines.append(printable(found))
    return table
