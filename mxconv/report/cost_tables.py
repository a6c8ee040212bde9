"""A cost report for people who read a terminal."""

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mxconv.report.text import NOTHING, number, printable

Members = dict[str, Any]
SHOWN_TOKENS = (1, 8)  # of the roofline's; all are in --json


def print_report(report: Members, console: Console) -> None:
    """Print every part that the report has; `report` is what `mxconv.cost.report.cost_report` returns."""
    hardware, workload = report["hardware"], report["workload"]
    heading = f"{hardware['name']}: {hardware['description']}"
    console.print(Text(printable(heading), style="bold"), soft_wrap=True)
    console.print(
        f"{hardware['read_bandwidth']:g} GB/s; batch {workload['batch']}, context {workload['context']:,}, "
        f"KV cache in {workload['kv_dtype']}",
        highlight=False,
    )
    _print_counts(report["counts"], console)
    printers = {
        "speedup": _print_speedup,
        "throughput": _print_throughput,
        "accelerator": _print_accelerator,
        "roofline": _print_roofline,
    }
    for entry in report["models"]:
        printers[entry["model"]](entry, console)
        console.print(Text(f"source: {entry['source']}", style="dim"), soft_wrap=True)
    for surface in report.get("sweep", []):
        _print_surface(surface, console)
    _print_advice(report["advice"], console)
    if "predictions" in report:
        _print_predictions(report["predictions"], console)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right")
    return table


def _print_counts(counts: Members, console: Console) -> None:
    outputs = counts["outputs"]
    table = _table(
        f"{outputs['num_parameters']:,} parameters, {outputs['num_active_parameters']:,} of them active for a token",
        *("a pass over one token", "weights, GB", "scales, GB", "KV cache, GB", "giga multiply-adds"),
    )
    for name, row in outputs["passes"].items():
        figures = [row[key] / 1e9 for key in ("weight_bytes", "scale_bytes", "kv_bytes", "multiply_adds")]
        table.add_row(Text(printable(name)), *(f"{figure:.4g}" for figure in figures))
    console.print(table)


def _print_speedup(entry: Members, console: Console) -> None:
    table = _table(
        "Speed-up",
        *("hierarchy", "acceptance", "draft tokens", "draft cost", "verify cost", "tokens a round", "speed-up"),
        "pays from",
    )
    for name, row in entry["outputs"].items():
        table.add_row(
            Text(printable(name)),
            _list(row["acceptance"], 3),
            _list(row["num_draft_tokens"], 2),
            f"{row['draft_cost']:.3f}",
            f"{row['verify_cost']:.3f}",
            f"{row['tokens_per_round']:.2f}",
            f"{row['speedup']:.2f}",
            number(row["break_even_acceptance"], 2),
        )
    console.print(table)


def _print_throughput(entry: Members, console: Console) -> None:
    if "note" in entry:
        console.print(f"Throughput: {entry['note']}", highlight=False)
        return
    inputs = entry["inputs"]
    table = _table(
        f"Throughput of a batch of {inputs['batch']}, {inputs['num_draft_tokens']} draft tokens, "
        f"{inputs['flops_per_byte']:.0f} FLOPs a byte",
        *("draft", "layers", "acceptance", "tokens a round", "multiplier", "units saved of 10"),
    )
    for name, row in entry["outputs"].items():
        figures = [row[key] for key in ("acceptance", "tokens_per_round", "throughput_multiplier", "units_saved_of_10")]
        table.add_row(name, str(row["draft_layers"]), *(f"{figure:.2f}" for figure in figures))
    console.print(table)


def _print_accelerator(entry: Members, console: Console) -> None:
    outputs = entry["outputs"]
    table = _table(
        "SPEQ's machine",
        *("pass", "mega cycles", "of DRAM", "GB", "ms", "joules", "DRAM W", "buffers W", "array W"),
    )
    for name in ("plain", "draft", "verify"):
        row = outputs[name]
        table.add_row(
            name,
            f"{row['compute_cycles'] / 1e6:.2f}",
            f"{row['dram_cycles'] / 1e6:.2f}",
            f"{row['dram_bytes'] / 1e9:.3f}",
            f"{row['seconds'] * 1e3:.2f}",
            f"{row['joules']:.3f}",
            *(f"{row['watts'][module]:.2f}" for module in ("dram", "buffers", "array")),
        )
    console.print(table)
    console.print(
        f"Td/Tar {outputs['draft_ratio']:.4f}, speed-up {outputs['speedup']:.3f}, energy efficiency "
        f"{outputs['energy_efficiency']:.2f}; over Olive {outputs['speedup_over_olive']:.2f}, over Tender "
        f"{outputs['speedup_over_tender']:.2f}",
        highlight=False,
    )


def _print_roofline(entry: Members, console: Console) -> None:
    table = _table(
        "Roofline",
        *(
            "level",
            "kernel",
            "tokens",
            "GB",
            "giga multiply-adds",
            "a byte",
            "attainable, G/s",
            "peak, G/s",
            "ms",
            "bound",
        ),
    )
    for name, rows in entry["outputs"].items():
        for row in (row for row in rows if row["num_tokens"] in SHOWN_TOKENS):
            table.add_row(
                Text(printable(name)),
                row["kernel"],
                f"{row['num_tokens']:g}",
                f"{row['num_bytes'] / 1e9:.4g}",
                f"{row['multiply_adds'] / 1e9:.4g}",
                f"{row['intensity']:.3g}",
                f"{row['attainable']:.4g}",
                f"{row['peak']:.4g}",
                f"{row['seconds'] * 1e3:.3g}",
                row["bound"],
            )
    console.print(table)


def _print_surface(surface: Members, console: Console) -> None:
    """Every tenth row and at most ten columns."""
    step = max(len(surface["columns"]) // 10, 1)
    columns = range(0, len(surface["columns"]), step)
    title = f"{surface['title']}: speed-up by {surface['row_name']} (down) and {surface['column_name']}"
    table = _table(title, "", *(f"{surface['columns'][column]:g}" for column in columns))
    for row in range(0, len(surface["rows"]), 5):
        values = surface["values"][row]
        table.add_row(f"{surface['rows'][row]:g}", *(f"{values[column]:.2f}" for column in columns))
    console.print(table)


def _print_advice(advice: Members, console: Console) -> None:
    table = _table(
        "Advice",
        *("hierarchy", "acceptance", "draft tokens", "threshold", "tokens/s", "speed-up", "pays from"),
    )
    sources: dict[str, None] = {}
    for choice in advice["choices"]:
        table.add_row(
            Text(printable(choice["strategy"])),
            _list(choice["acceptance"], 3),
            _list(choice["num_draft_tokens"], 2),
            number(choice["confidence"], 1),
            f"{choice['tokens_per_second']:.4g}",
            f"{choice['speedup']:.2f}",
            number(choice["break_even_acceptance"], 2),
        )
        for value, source in zip(choice["acceptance"], choice["acceptance_sources"], strict=True):
            sources[f"{value:g}: {source}"] = None
    console.print(table)
    console.print(Text(printable(advice["text"]), style="bold"), soft_wrap=True)
    for source in sources:
        console.print(Text(f"acceptance {printable(source)}", style="dim"), soft_wrap=True)


def _print_predictions(predictions: Members, console: Console) -> None:
    table = _table(
        "Predicted and measured",
        *("trace", "levels", "acceptance", "draft tokens", "measured tokens/s", "predicted", "error"),
        *("Eq. (1) of its passes", "error", "pass ms, measured", "predicted"),
    )
    for row in predictions["strategies"]:
        table.add_row(
            Text(printable(row["strategy"])),
            Text(printable(" <- ".join(row["levels"]))),
            _list(row["acceptance"], 3),
            _list(row["num_draft_tokens"], 2),
            f"{row['measured_tokens_per_second']:.2f}",
            f"{row['predicted_tokens_per_second']:.2f}",
            f"{row['error']:+.1%}",
            f"{row['equation_tokens_per_second']:.2f}",
            f"{row['equation_error']:+.1%}",
            _list([1e3 * seconds for seconds in row["measured_pass_seconds"]], 2),
            _list([1e3 * seconds for seconds in row["predicted_pass_seconds"]], 2),
        )
    console.print(table)
    console.print(f"Mean error {predictions['mean_error']:.1%}", highlight=False)


def _list(values: list[float], digits: int) -> str:
    return ", ".join(f"{value:.{digits}f}".rstrip("0").rstrip(".") for value in values) or NOTHING
