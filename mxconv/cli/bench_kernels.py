"""`mxconv bench kernels`: products of one matrix, for each format, instruction set and number of tokens."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mxconv.cli.bench_gpu import kernels_on_gpu
from mxconv.cli.bench_options import DEVICE, JSON, THREADS, is_gpu, print_machine, widths_of
from mxconv.cli.completion import native_kernels, one_of
from mxconv.cli.output import console, print_json, progress_bars

if TYPE_CHECKING:
    from mxconv.bench.kernel_result import KernelResult
    from mxconv.bench.machine import Machine


def kernels(
    context: typer.Context,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="bf16, fp16, bsfp-full, bsfp-draft, mxint8, mxfp4-int8 or mxfp4-fp32; on a GPU mxfp4-bf16 and "
            "dfloat11, and no fp16, mxint8 or mxfp4-fp32; repeatable; all by default.",
            autocompletion=one_of(
                "bf16",
                "fp16",
                "bsfp-full",
                "bsfp-draft",
                "mxint8",
                "mxfp4-int8",
                "mxfp4-fp32",
                "mxfp4-bf16",
                "dfloat11",
            ),
        ),
    ] = None,
    kernel: Annotated[
        list[str] | None,
        typer.Option(
            help="Implementation, or all; repeatable; this processor's best by default.", autocompletion=native_kernels
        ),
    ] = None,
    num_tokens: Annotated[str, typer.Option(help="Tokens a product, joined by commas; each 1 to 64.")] = "1,2,4,8,16",
    out_features: Annotated[int, typer.Option(min=1, max=1 << 20, help="Rows of the matrix.")] = 8192,
    in_features: Annotated[int, typer.Option(min=1, max=1 << 20, help="Columns of the matrix.")] = 8192,
    samples: Annotated[int, typer.Option(min=20, help="Samples of each figure.")] = 40,
    threads: THREADS = None,
    device: DEVICE = "cpu",
    plot: Annotated[Path | None, typer.Option(help="Draw bandwidth against tokens; .png or .svg.")] = None,
    roofline: Annotated[Path | None, typer.Option(help="Draw the roofline; .png or .svg.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite pictures that exist.")] = False,
    json_output: JSON = False,
) -> None:
    """A matrix times a few tokens, by format and instruction set.

    With --device cuda: on a GPU, by format, beside torch's BF16 product. Replays of CUDA graphs are timed, by events on
    the GPU, so that Python's launches are not: a figure is the mean of at least 32 products, one behind the other.
    """
    if is_gpu(context, device, ("kernel", "threads", "roofline")):
        shape = (out_features, in_features)
        kernels_on_gpu(device, only, widths_of(num_tokens), shape, samples, plot, force, json_output)
        return
    from mxconv.bench.engine import implementations

    names = implementations(kernel)

    from mxconv.bench.kernels import bench_kernels
    from mxconv.bench.machine import this_machine
    from mxconv.bench.operands import KERNELS
    from mxconv.bench.plot import write_bandwidth_plot, write_roofline
    from mxconv.kernels.engine import usable_processors
    from mxconv.report.output_file import check_output, write_output
    from mxconv.report.picture import check_suffix

    chosen = list(dict.fromkeys(only or KERNELS))
    if unknown := [name for name in chosen if name not in KERNELS]:
        raise typer.BadParameter(f"--only: {unknown[0]!r}; one of {', '.join(KERNELS)} is required.")
    widths = widths_of(num_tokens)
    for path in (plot, roofline):
        if path is not None:
            check_suffix(path)
            check_output(path, force)
    machine = this_machine(threads or usable_processors())
    results = []
    with progress_bars("figures") as progress:
        measured = bench_kernels(
            chosen, names, widths, (out_features, in_features), num_threads=machine.threads, num_samples=samples
        )
        total = len(chosen) * len(names) * len(widths)
        progress("measure", 0, total)
        for result in measured:
            results.append(result)
            progress("measure", len(results), total)
    if plot is not None:
        write_output(plot, lambda path: write_bandwidth_plot(results, machine, path))
    if roofline is not None:
        write_output(roofline, lambda path: write_roofline(results, machine, path))
    _print(results, machine, json_output)
    if json_output:
        print_json({"machine": asdict(machine), "results": [asdict(result) for result in results]})


def _print(results: "list[KernelResult]", machine: "Machine", json_output: bool) -> None:
    from rich.table import Table

    table = Table(
        *("kernel", "implementation", "tokens", "ms", "p10..p90", "GB/s", "bandwidth", "of bandwidth"),
        *("G mul-add/s", "peak", "of roofline"),
    )
    for r in results:
        table.add_row(
            r.kernel,
            r.implementation,
            str(r.num_tokens),
            f"{r.seconds * 1e3:.3f}",
            f"{r.seconds_p10 * 1e3:.3f}..{r.seconds_p90 * 1e3:.3f}",
            f"{r.gigabytes_per_second:.1f}",
            f"{r.read_bandwidth:.1f}",
            f"{r.fraction_of_bandwidth:.3f}",
            f"{r.giga_multiply_adds_per_second:.0f}",
            f"{r.compute_peak:.0f}",
            f"{r.fraction_of_roofline:.3f}",
        )
    out = console(json_output)
    print_machine(out, machine)
    out.print(table)
    first = results[0]
    out.print(
        f"{first.out_features} x {first.in_features}, medians of {first.num_samples}; every product was compared with "
        "float64 arithmetic on the weights that NumPy decodes",
        highlight=False,
    )
