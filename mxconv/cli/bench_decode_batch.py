"""`mxconv bench decode --batch`: sequences side by side."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from mxconv.cli.bench_options import print_machine
from mxconv.cli.output import console, print_json

if TYPE_CHECKING:
    from mxconv.bench.batches import BatchResult
    from mxconv.bench.machine import Machine

MOST_SEQUENCES = 1024
BATCH = Annotated[
    str | None,
    typer.Option(help="Instead: so many sequences side by side, one number or several joined by commas: 1,4,8."),
]


def batch_sizes(text: str) -> list[int]:
    """`--batch`: ascending, each once."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() and 1 <= int(part) <= MOST_SEQUENCES for part in parts):
        raise typer.BadParameter(
            f"--batch: {text!r}; numbers from 1 to {MOST_SEQUENCES}, joined by commas, are required."
        )
    return sorted({int(part) for part in parts})


def tell_batches(
    machine: "Machine",
    implementation: str,
    results: "Sequence[BatchResult]",
    num_chat_prompts: int,
    json_output: bool,
    package: str,
) -> None:
    """The table, or the JSON object.

    Raises:
        ModelError: tokens differ.
    """
    from mxconv.errors import ModelError

    _print(machine, implementation, results, json_output)
    target = results[0].levels[0]
    if json_output:
        members = {"machine": asdict(machine), "implementation": implementation, "target": target}
        print_json({**members, "num_chat_prompts": num_chat_prompts, "results": [asdict(result) for result in results]})
    if different := [f"{result.strategy} ({result.batch})" for result in results if not result.identical_to_greedy]:
        raise ModelError(
            f"{package}: tokens of {', '.join(different)} differ from those of greedy decoding by {target}; none may. "
            "Please report this as a defect."
        )


def _print(machine: "Machine", implementation: str, results: "Sequence[BatchResult]", json_output: bool) -> None:
    from rich.table import Table

    table = Table(
        *("at a time", "strategy", "tokens/s", "speed-up", f"to {results[0].batch} at a time", "tokens a round"),
        *("acceptance", "GB/s", "same tokens"),
    )
    for r in results:
        rates = ("" if rate is None else f"{rate:.3f}" for rate in r.acceptance_rates)
        table.add_row(
            str(r.batch),
            r.strategy,
            f"{r.tokens_per_second:.1f}",
            f"{r.speedup:.2f}",
            f"{r.scaling:.2f}",
            f"{r.tokens_per_round:.2f}",
            ", ".join(rates),
            f"{r.read_bandwidth:.1f}",
            "yes" if r.identical_to_greedy else "NO",
            end_section=r.strategy == results[-1].strategy,
        )
    out = console(json_output)
    print_machine(out, machine)
    out.print(table)
    first = results[0]
    out.print(
        f"{implementation}; {first.num_sequences} sequences, {first.num_tokens} tokens, prompts included in the time",
        highlight=False,
    )
