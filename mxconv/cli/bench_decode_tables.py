"""The tables of `mxconv bench decode`."""

from typing import TYPE_CHECKING

from mxconv.cli.bench_options import print_machine
from mxconv.cli.output import console

if TYPE_CHECKING:
    from rich.console import Console

    from mxconv.bench.decode_result import DecodeResult
    from mxconv.bench.forwards import ForwardResult
    from mxconv.bench.machine import Machine
    from mxconv.bench.sweep import Sweep


def print_tables(
    machine: "Machine",
    implementation: str,
    forwards: "list[ForwardResult]",
    results: "list[DecodeResult]",
    swept: "Sweep | None",
    json_output: bool,
) -> None:
    """Forward passes, strategies, and the sweep if there was one."""
    out = console(json_output)
    print_machine(out, machine)
    _print_forwards(out, forwards)
    print_strategies(out, results)
    out.print(f"greedy: plain decoding of {results[0].levels[0]}", markup=False, highlight=False)
    out.print(
        f"{implementation}; forward passes behind a context, medians of {forwards[0].num_samples}", highlight=False
    )
    if swept is not None:
        _print_sweep(out, swept)


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
        "of Leviathan's",
        "of ML-SpecQD's",
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
            _number(r.measured_over_predicted, 3),
            _number(r.measured_over_ml_specqd, 3),
            f"{r.tokens_per_round:.2f}",
            *([", ".join(map(str, r.num_nodes))] if has_trees else []),
            ", ".join(_number(rate, 3) for rate in r.acceptance_rates),
            f"{r.fraction_of_bandwidth:.3f}",
            "yes" if r.identical_to_greedy else "NO",
        )
    out.print(table)


def _print_sweep(out: "Console", swept: "Sweep") -> None:
    from rich.table import Table

    table = Table(
        f"{swept.level} below {swept.target}: speed-up behind the prompts (acceptance)",
        *(f"confidence {threshold:g}" for threshold in swept.confidence),
    )
    rows = zip(swept.num_draft_tokens, swept.decode_speedup, swept.acceptance_rate, strict=True)
    for length, speedups, rates in rows:
        cells = (f"{_number(speedup, 2)} ({_number(rate, 2)})" for speedup, rate in zip(speedups, rates, strict=True))
        table.add_row(_tokens(length), *cells)
    out.print(table)
    for line in _prediction(swept):
        out.print(line, highlight=False)


def _prediction(swept: "Sweep") -> list[str]:
    """The footer: what the early-exit model predicts, from what, and how far off it is."""
    from mxconv.bench.sweep import highest

    best, foretold = highest(swept.decode_speedup), highest(swept.predicted_speedup)
    if best is None or foretold is None or swept.acceptance is None or swept.costs is None:
        return []

    def at(cell: tuple[int, int]) -> str:
        return f"{_tokens(swept.num_draft_tokens[cell[0]])}, confidence {swept.confidence[cell[1]]:g}"

    (y, x), costs = foretold, swept.costs
    measured, predicted = swept.decode_speedup[best[0]][best[1]], swept.predicted_speedup[y][x]
    return [
        f"predicted from acceptance {swept.acceptance:.3f} and, in plain passes, {costs.draft_token:.3f} for a draft "
        f"token, {costs.verification:.3f} + {costs.verified_token:.3f} n for verification of n",
        f"error over all cells: mean {swept.mean_error:.1%}, worst {swept.worst_error:+.1%}",
        f"fastest: {measured:.2f} at {at(best)}; predicted to be: {predicted:.2f} at {at(foretold)}, where "
        f"{_number(swept.decode_speedup[y][x], 2)} was measured",
    ]


def _tokens(length: int) -> str:
    return f"{length} draft token{'' if length == 1 else 's'}"


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"
