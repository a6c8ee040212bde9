"""`mxconv bench decode`: forward passes and whole decodes of a package."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mxconv.cli.bench_options import JSON, THREADS, print_machine, widths_of
from mxconv.cli.output import console, print_json, progress_bars

if TYPE_CHECKING:
    from mxconv.bench.decoding import DecodeResult
    from mxconv.bench.forwards import ForwardResult
    from mxconv.bench.machine import Machine


def decode(
    package: Annotated[str, typer.Argument(help="The package: a folder, or the Hub id of one.")],
    prompts: Annotated[
        Path | None, typer.Option(help="A .jsonl file with a `prompt` a line; a few by default.")
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens to generate a prompt.")] = 64,
    num_tokens: Annotated[str, typer.Option(help="Tokens a forward pass, joined by commas; each 1 to 64.")] = "1,4,8",
    samples: Annotated[int, typer.Option(min=20, help="Samples of each forward pass.")] = 20,
    kernel: Annotated[str | None, typer.Option(help="Native implementation; MXCONV_KERNEL sets a default.")] = None,
    threads: THREADS = None,
    json_output: JSON = False,
) -> None:
    """Tokens a second of greedy decoding, of each draft alone, and of the full hierarchy."""
    from mxconv.bench.engine import implementations

    (name,) = implementations([kernel] if kernel is not None else None)  # first: what follows needs native kernels

    from mxconv.bench.decoding import DEFAULT_PROMPTS, bench_decoding
    from mxconv.bench.forwards import bench_forwards
    from mxconv.bench.machine import this_machine
    from mxconv.checkpoint.package_folder import find_package
    from mxconv.errors import ModelError
    from mxconv.kernels.engine import choose_engine
    from mxconv.model.loader import LoadedPackage
    from mxconv.speculative.prompts import read_prompts

    widths = widths_of(num_tokens)
    texts = read_prompts(prompts) if prompts is not None else list(DEFAULT_PROMPTS)
    engine = choose_engine(name, threads)
    assert engine is not None
    machine = this_machine(engine.num_threads)
    with (
        LoadedPackage(find_package(package), kernel=name, num_threads=engine.num_threads) as loaded,
        progress_bars("runs") as progress,
    ):
        forwards = bench_forwards(loaded, engine, widths, samples, progress)
        results = bench_decoding(loaded, engine, texts, max_new_tokens, progress)
    _print(machine, name, forwards, results, json_output)
    if json_output:
        members: dict[str, Any] = {"machine": asdict(machine), "implementation": name}
        members["results"] = [asdict(result) for result in results]
        members["forwards"] = [asdict(result) for result in forwards]
        print_json(members)
    if different := [result.strategy for result in results if not result.identical_to_greedy]:
        raise ModelError(
            f"{package}: tokens of {', '.join(different)} differ from those of greedy decoding; none may. "
            "Please report this as a defect."
        )


def _print(
    machine: "Machine",
    implementation: str,
    forwards: "list[ForwardResult]",
    results: "list[DecodeResult]",
    json_output: bool,
) -> None:
    from rich.table import Table

    out = console(json_output)
    print_machine(out, machine)
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
    table = Table("strategy", "tokens", "tokens/s", "speed-up", "acceptance", "of bandwidth", "same tokens")
    for r in results:
        rates = ["" if rate is None else f"{rate:.3f}" for rate in r.acceptance_rates]
        table.add_row(
            r.strategy,
            str(r.num_tokens),
            f"{r.tokens_per_second:.1f}",
            f"{r.speedup:.2f}",
            ", ".join(rates),
            f"{r.fraction_of_bandwidth:.3f}",
            "yes" if r.identical_to_greedy else "NO",
        )
    out.print(table)
    out.print(
        f"{implementation}; forward passes behind a context, medians of {forwards[0].num_samples}", highlight=False
    )
