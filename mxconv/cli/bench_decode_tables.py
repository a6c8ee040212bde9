"""The tables of `mxconv bench decode`."""

from typing import TYPE_CHECKING

from mxconv.cli.bench_options import print_machine
from mxconv.cli.output import console

if TYPE_CHECKING:
    from rich.console import Console

    from mxconv.bench.decode_result import DecodeResult
    from mxconv.bench.forwards import ForwardResult
    from mxconv.bench.machine import Machine


def print_tables(
    machine: "Machine",
    implementation: str,
    forwards: "list[ForwardResult]",
    results: "list[DecodeResult]",
    json_output: bool,
) -> None:
    """Print forward passes and strategies."""
    out = console(json_output)
    print_machine(out, machine)
    _print_forwards(out, forwards)
    print_strategies(out, results)
    out.print(f"greedy: plain decoding of {results[0].levels[0]}", markup=False, highlight=False)
    out.print(
        f"{implementation}; forward passes behind a context, medians of {forwards[0].num_samples}", highlight=False
    )


def _print_forwards(out: "Console", forwards: "list[ForwardResult]") -> None:
    from rich.table import Table

    table = Table("level", "tokens", "ms", "p10..p90", "to fewest", "GB/s", "bandwidth", "of bandwidth")
    for f in forwards:
        table.add_row(
            f.level,
            str(f.num_tokens),
            f"{f.seconds * 1e3:.2f}",
            f"{f.seconds_p10 * 1e3:.2f}..{f.seconds_p90 * 1e3:.2f}",
            f"{f.relative_seconds:.2f}",
            f"{f.gigabytes_per_second:.1f}",
            f"{f.read_bandwidth:.1f}",
            f"{f.fraction_of_bandwidth:.3f}",
        )
    out.print(table)


def print_strategies(out: "Console", results: "list[DecodeResult]") -> None:
    """A row for each strategy."""
    from rich.table import Table

    has_trees = any(r.has_trees for r in results)
    table = Table(
        "strategy",
        "tokens",
        "tokens/s",
        "speed-up",
        "behind prompt",
        "tokens a round",
        *(["nodes"] if has_trees else []),
        "acceptance",
        "of bandwidth",
        "same tokens",
    )
    for r in results:
        table.add_row(
            r.strategy,
            str(r.num_tokens),
            f"{r.tokens_per_second:.1f}",
            f"{r.speedup:.2f}",
            _number(r.decode_speedup, 2),
            f"{r.tokens_per_round:.2f}",
            *([", ".join(map(str, r.num_nodes))] if has_trees else []),
            ", ".join(_number(rate, 3) for rate in r.acceptance_rates),
            f"{r.fraction_of_bandwidth:.3f}",
            "yes" if r.identical_to_greedy else "NO",
        )
    out.print(table)


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"
