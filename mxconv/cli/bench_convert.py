"""`mxconv bench convert`: a conversion against a copy of the same bytes."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mxconv.cli.bench_options import JSON, THREADS, print_machine
from mxconv.cli.completion import one_of
from mxconv.cli.output import console, format_bytes, print_json, progress_bars

if TYPE_CHECKING:
    from mxconv.bench.conversion import ConversionResult
    from mxconv.bench.machine import Machine


def convert(
    source: Annotated[str | None, typer.Argument(help="A local checkpoint; random weights without one.")] = None,
    codec: Annotated[
        list[str] | None,
        typer.Option(help="mxfp4 or bsfp; repeatable; both by default.", autocompletion=one_of("mxfp4", "bsfp")),
    ] = None,
    num_bytes: Annotated[int, typer.Option(min=1 << 16, help="Size of the random checkpoint.")] = 1_000_000_000,
    samples: Annotated[int, typer.Option(min=1, help="Samples of each figure.")] = 3,
    workspace: Annotated[
        Path | None,
        typer.Option(help="Folder on the disk to measure, for copies and packages; the system's by default."),
    ] = None,
    threads: THREADS = None,
    json_output: JSON = False,
) -> None:
    """Gigabytes a second of 16-bit input beside those of a copy.

    Cold and warm, with peak memory.
    """
    import tempfile

    from mxconv.bench.engine import implementations

    implementations()  # first: what follows needs native kernels

    from mxconv.bench.conversion import bench_conversion
    from mxconv.bench.machine import this_machine
    from mxconv.bench.random_checkpoint import write_random_checkpoint
    from mxconv.conversion.options import Codec
    from mxconv.kernels.engine import usable_processors

    known: dict[str, Codec] = {"mxfp4": "mxfp4", "bsfp": "bsfp"}
    if unknown := [name for name in codec or () if name not in known]:
        raise typer.BadParameter(f"--codec: {unknown[0]!r}; one of {', '.join(known)} is required.")
    if workspace is not None and not workspace.is_dir():
        raise typer.BadParameter(f"--workspace: {str(workspace)!r}; a folder that exists is required.")
    chosen = [known[name] for name in dict.fromkeys(codec or known)]
    machine = this_machine(threads or usable_processors())
    with tempfile.TemporaryDirectory(prefix="mxconv-bench-", dir=workspace) as folder:
        if source is None:
            with progress_bars() as progress:
                write_random_checkpoint(Path(folder), num_bytes, progress)
            source = folder
        with progress_bars("samples") as progress:
            results = bench_conversion(source, chosen, machine.threads, samples, workspace, progress)
    _print(machine, results, json_output)
    if json_output:
        print_json({"machine": asdict(machine), "results": [asdict(result) for result in results]})


def _print(machine: "Machine", results: "list[ConversionResult]", json_output: bool) -> None:
    from rich.table import Table

    from mxconv.system.memory import can_forget

    out = console(json_output)
    print_machine(out, machine)
    table = Table(
        "codec", "cache", "seconds", "GB/s", "copy GB/s", "time to copy's", "to flushed copy's", "peak memory"
    )
    for r in results:
        table.add_row(
            r.codec,
            "cold",
            f"{r.seconds:.2f}",
            f"{r.input_gigabytes_per_second:.2f}",
            f"{r.copy_gigabytes_per_second:.2f}",
            f"{r.ratio_to_copy:.2f}",
            f"{r.ratio_to_flushed_copy:.2f}",
            format_bytes(r.peak_rss_bytes),
        )
        table.add_row(
            r.codec,
            "warm",
            f"{r.warm_seconds:.2f}",
            f"{r.warm_input_gigabytes_per_second:.2f}",
            f"{r.warm_copy_gigabytes_per_second:.2f}",
            f"{r.warm_ratio_to_copy:.2f}",
        )
    out.print(table)
    if not can_forget():
        out.print("this system drops no files from its cache: the cold figures are warm ones, too")
    for r in results:
        out.print(f"{r.codec} encoder alone: {r.encoder_gigabytes_per_second:.2f} GB/s a thread", highlight=False)
    first = results[0]
    out.print(f"{format_bytes(first.num_bytes)} of 16-bit weights, medians of {first.num_samples}", highlight=False)
