"""`mxconv tune levels`: which levels, how many draft tokens, which thresholds."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mxconv.cli.bench_options import JSON, THREADS, print_machine
from mxconv.cli.completion import kernels
from mxconv.cli.generate_options import DRAFT, LEVELS, level_names
from mxconv.cli.output import console, print_json, progress_bars

if TYPE_CHECKING:
    from mxconv.bench.machine import Machine
    from mxconv.package.manifest import TunedRecord
    from mxconv.tuning.levels import Decodes, Tuning

MAX_ROWS = 12


def levels(
    package: Annotated[str, typer.Argument(help="The package: a folder, or the Hub id or URL of one.")],
    prompts: Annotated[Path, typer.Option(help="A .jsonl file with a `prompt` a line, like those to come.")],
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens to generate a prompt.")] = 64,
    budget: Annotated[float, typer.Option(min=0, help="Seconds to measure; the last decode may end later.")] = 120,
    levels: LEVELS = None,
    draft: DRAFT = None,
    kernel: Annotated[
        str | None, typer.Option(help="Native implementation; MXCONV_KERNEL sets a default.", autocompletion=kernels)
    ] = None,
    threads: THREADS = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Measure and print, but write nothing.")] = False,
    json_output: JSON = False,
) -> None:
    """Search levels, lengths and thresholds for the fastest.

    They are written into the manifest, as what is used by default.
    """
    from mxconv.bench.engine import implementations

    if draft and not dry_run:
        raise typer.BadParameter("--draft: no part of the package, which cannot name it; --dry-run is required.")
    (name,) = implementations([kernel] if kernel is not None else None)  # first: what follows needs native kernels

    from mxconv.bench.machine import this_machine
    from mxconv.bench.prompts import prompt_ids
    from mxconv.engine.loader import LoadedPackage
    from mxconv.errors import ModelError
    from mxconv.kernels.engine import usable_processors
    from mxconv.package.draft_spec import parse_draft
    from mxconv.package.manifest import read_manifest, replace_manifest
    from mxconv.package.package_folder import check_writable, find_package
    from mxconv.speculation.prompts import read_prompts
    from mxconv.tuning.levels import Decodes, record_of, tune_levels

    if not dry_run:
        check_writable(package, "what is found")
    texts = read_prompts(prompts)
    machine = this_machine(threads or usable_processors())
    folder = find_package(package)
    manifest = read_manifest(folder)
    own = manifest.levels[0].name
    if levels is not None and not dry_run and (first := levels.split(",")[0].strip()) != own:
        raise ModelError(
            f"{package}: --levels with {first} first; what is written is what decodes by default, and that is {own}. "
            f"Give --dry-run, or begin with {own}."
        )
    names = level_names(levels) or [level.name for level in manifest.levels]  # not only what tuning chose before
    begin = time.perf_counter()
    with (
        LoadedPackage(folder, names, name, machine.threads, [parse_draft(text) for text in draft or ()]) as loaded,
        progress_bars("seconds") as progress,
    ):
        ids = prompt_ids(loaded.tokenizer, loaded.folder, texts)
        decodes = Decodes(loaded.levels, ids, max_new_tokens, loaded.tokenizer.eos_token_ids)
        tuning = tune_levels(decodes, loaded.levels, len(ids), budget, progress)
        record = record_of(tuning, loaded.levels, machine.cpu, machine.threads, name)
    if not dry_run:
        replace_manifest(folder, manifest.model_copy(update={"tuned": record}))
    _print(machine, tuning, decodes, record, dry_run, json_output)
    if json_output:
        members: dict[str, Any] = {"machine": asdict(machine), **record.model_dump(), "written": not dry_run}
        members["seconds"] = time.perf_counter() - begin
        members["candidates"] = [
            {
                "levels": decodes.names(standing.entrant),
                "num_draft_tokens": list(standing.entrant.num_draft_tokens),
                "confidence": list(standing.entrant.confidence),
                "speedup": standing.speedup,
                "num_prompts": len(standing.ratios),
            }
            for standing in tuning.standings
        ]
        print_json(members)


def _print(
    machine: "Machine",
    tuning: "Tuning",
    decodes: "Decodes",
    record: "TunedRecord",
    dry_run: bool,
    json_output: bool,
) -> None:
    from rich.table import Table

    out = console(json_output)
    print_machine(out, machine)
    table = Table("levels", "draft tokens", "confidence", "speed-up", "prompts")
    for standing in tuning.standings[:MAX_ROWS]:
        candidate = standing.entrant
        table.add_row(
            decodes.describe(candidate),
            ", ".join(map(str, candidate.num_draft_tokens)),
            ", ".join(f"{threshold:g}" for threshold in candidate.confidence),
            f"{standing.speedup:.3f}",
            str(len(standing.ratios)),
        )
    out.print(table)
    if (left_out := len(tuning.standings) - MAX_ROWS) > 0:
        out.print(f"{left_out} more were slower, or were given up earlier", highlight=False)
    winner = tuning.winner
    out.print(
        f"fastest: {decodes.describe(winner.entrant)}, {_numbers(winner.entrant.num_draft_tokens)} draft tokens, "
        f"confidence {_numbers(winner.entrant.confidence)}: {winner.speedup:.3f} x plain decoding "
        f"of {record.levels[0]} over {record.num_prompts} prompts and {record.num_tokens} tokens",
        markup=False,
        highlight=False,
    )
    if not tuning.pays:
        out.print("no draft pays here: the target alone is the fastest", highlight=False)
    out.print(
        "nothing was written (--dry-run)" if dry_run else "written: decoding uses this where no --levels are given",
        highlight=False,
    )


def _numbers(numbers: "tuple[float, ...]") -> str:
    return ", ".join(f"{number:g}" for number in numbers)
