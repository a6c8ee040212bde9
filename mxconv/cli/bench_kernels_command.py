"""`mxconv bench kernels`: products of one matrix, for each format, instruction set and number of tokens."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from mxconv.cli.bench_gpu import kernels_on_gpu
from mxconv.cli.bench_options import (
    Device,
    RowLength,
    Rows,
    Samples,
    Widths,
    chosen_of,
    is_gpu,
    print_machine,
    widths_of,
)
from mxconv.cli.common_options import Force, Json, Threads
from mxconv.cli.completion import native_kernels, one_of
from mxconv.cli.output import Output, check_outputs, progress_bars

TABLE = {
    "kernel": ("kernel",),
    "implementation": ("implementation",),
    "tokens": ("num_tokens",),
    "ms": ("seconds", ".3f", 1e3),
    "p10": ("seconds_p10", ".3f", 1e3),
    "p90": ("seconds_p90", ".3f", 1e3),
    "GB/s": ("gigabytes_per_second", ".1f"),
    "bandwidth": ("read_bandwidth", ".1f"),
    "of bandwidth": ("fraction_of_bandwidth", ".3f"),
    "G mul-add/s": ("giga_multiply_adds_per_second", ".0f"),
    "peak": ("compute_peak", ".0f"),
    "of roofline": ("fraction_of_roofline", ".3f"),
}
ON_CPU = ("bf16", "fp16", "bsfp-full", "bsfp-draft", "mxint8", "mx2", "mxfp4-int8", "mxfp4-fp32")


def kernels(
    context: typer.Context,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Kernel: {', '.join(ON_CPU[:-1])} or {ON_CPU[-1]}; on a GPU mxfp4-bf16, and no fp16, mxint8, mx2 or "
            "mxfp4-fp32. All by default. Repeatable.",
            autocompletion=one_of(*ON_CPU, "mxfp4-bf16"),
        ),
    ] = None,
    kernel: Annotated[
        list[str] | None,
        typer.Option(
            help="Implementation, or all; this processor's best by default. Repeatable.", autocompletion=native_kernels
        ),
    ] = None,
    num_tokens: Widths = "1,2,4,8,16",
    out_features: Rows = 8192,
    in_features: RowLength = 8192,
    samples: Samples = 40,
    threads: Threads = None,
    device: Device = "cpu",
    plot: Annotated[Path | None, typer.Option(help="Draw bandwidth against tokens; .png or .svg.")] = None,
    roofline: Annotated[Path | None, typer.Option(help="Draw the roofline; .png or .svg.")] = None,
    force: Force = False,
    json_output: Json = False,
) -> None:
    """Multiply a matrix and tokens, by format and instruction set.

    A GPU (--device cuda) is measured by format, beside torch's BF16 product. Replays of CUDA graphs are timed by events
    on the GPU, so that launches are not: a figure is the mean of at least 32 products, one after the other.
    """
    shape = (out_features, in_features)
    if is_gpu(context, device, ("kernel", "threads", "roofline")):
        kernels_on_gpu(device, only, widths_of(num_tokens), shape, samples, plot, force, json_output)
        return
    from mxconv.bench.machine import implementations, this_machine

    names = implementations(kernel)

    from mxconv.bench.kernel_speed import KERNELS, bench_kernels
    from mxconv.bench.plots import bandwidth_charts, roofline_charts
    from mxconv.kernels.engine import usable_processors
    from mxconv.report.charts import write_picture

    chosen = chosen_of("--only", only, KERNELS)
    widths = widths_of(num_tokens)
    check_outputs(force, [plot, roofline])
    machine = this_machine(threads or usable_processors())
    results = []
    with progress_bars("figures") as progress:
        for result in bench_kernels(chosen, names, widths, shape, machine.threads, samples):
            results.append(result)
            progress("measure", len(results), len(chosen) * len(names) * len(widths))
    out = Output(json_output)
    print_machine(out, machine, machine.compiler)
    out.table(TABLE, results)
    out.line(
        f"{out_features} x {in_features}, medians of {samples}; every product was compared with float64 arithmetic"
    )
    described = f"{out_features} x {in_features}, {machine.described}"
    read, roofs = f"Weights read a second: {described}", f"Roofline: {described}"
    out.write(plot, lambda path: write_picture(path, read, bandwidth_charts(results)))
    out.write(roofline, lambda path: write_picture(path, roofs, roofline_charts(results)))
    out.json({"machine": asdict(machine), "results": [asdict(result) for result in results]})
