"""`mxconv bench convert`: a conversion against a copy of the same bytes."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from mxconv.cli.common_options import Json, Threads, chosen_of, size_option
from mxconv.cli.completion import one_of
from mxconv.cli.output import Output, print_machine, progress_bars
from mxconv.report.tables import format_bytes

TABLE = {
    "codec": ("codec",),
    "seconds": ("seconds", ".2f"),
    "GB/s": ("input_gigabytes_per_second", ".2f"),
    "copy GB/s": ("copy_gigabytes_per_second", ".2f"),
    "time to copy's": ("ratio_to_copy", ".2f"),
    "to flushed copy's": ("ratio_to_flushed_copy", ".2f"),
    "warm seconds": ("warm_seconds", ".2f"),
    "warm GB/s": ("warm_input_gigabytes_per_second", ".2f"),
    "warm copy GB/s": ("warm_copy_gigabytes_per_second", ".2f"),
    "warm time to copy's": ("warm_ratio_to_copy", ".2f"),
    "encoder GB/s a thread": ("encoder_gigabytes_per_second", ".2f"),
    "peak memory": ("peak_rss_bytes", "bytes"),
}

LEAST_BYTES = 1 << 16  # of a random checkpoint


def convert(
    source: Annotated[str | None, typer.Argument(help="A local checkpoint; random weights without one.")] = None,
    codec: Annotated[
        list[str] | None,
        typer.Option(help="Codec: mxfp4 or bsfp; both by default. Repeatable.", autocompletion=one_of("mxfp4", "bsfp")),
    ] = None,
    num_bytes: Annotated[int, size_option("Size of the random checkpoint.")] = 1_000_000_000,
    samples: Annotated[int, typer.Option(min=1, help="Samples of each figure.")] = 3,
    workspace: Annotated[
        Path | None,
        typer.Option(help="Folder on the disk to measure, for copies and packages; the system's by default."),
    ] = None,
    threads: Threads = None,
    json_output: Json = False,
) -> None:
    """Measure a conversion beside a copy of the same bytes.

    Figures are gigabytes of 16-bit input a second, cold and warm, and peak memory.
    """
    import tempfile
    from typing import cast, get_args

    from mxconv.bench.machine import implementations

    implementations()  # first: what follows needs native kernels

    from mxconv.bench.conversion_speed import bench_conversion, write_random_checkpoint
    from mxconv.bench.machine import this_machine
    from mxconv.conversion.options import Codec
    from mxconv.kernels.engine import usable_processors
    from mxconv.system.memory import can_forget

    chosen = cast("list[Codec]", chosen_of("--codec", codec, get_args(Codec)))
    if workspace is not None and not workspace.is_dir():
        raise typer.BadParameter(f"--workspace: {str(workspace)!r}; a folder that exists is required.")
    if num_bytes < LEAST_BYTES:
        raise typer.BadParameter(f"--num-bytes: {num_bytes}; at least {LEAST_BYTES} are required.")
    machine = this_machine(threads or usable_processors())
    with tempfile.TemporaryDirectory(prefix="mxconv-bench-", dir=workspace) as folder:
        if source is None:
            with progress_bars() as progress:
                write_random_checkpoint(Path(folder), num_bytes, progress)
            source = folder
        with progress_bars("samples") as progress:
            results = bench_conversion(source, chosen, machine.threads, samples, workspace, progress)
    out = Output(json_output)
    print_machine(out, machine, machine.compiler)
    out.table(TABLE, results)
    if not can_forget():
        out.line("this system drops no files from its cache: the cold figures are warm ones, too")
    out.line(f"{format_bytes(results[0]['num_bytes'])} of 16-bit weights, medians of {results[0]['num_samples']}")
    out.json({"machine": asdict(machine), "results": results})
