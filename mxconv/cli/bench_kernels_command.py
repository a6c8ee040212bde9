"""`mxconv bench kernels`: products of one matrix, by format, instruction set and tokens; on a GPU too."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mxconv.cli.common_options import (
    Force,
    Json,
    RowLength,
    Rows,
    Samples,
    Threads,
    Widths,
    chosen_of,
    offered_native_kernels,
    one_of,
    widths_of,
)
from mxconv.cli.output import Output, check_outputs, print_machine, progress_bars
from mxconv.errors import MxconvError, install_line

if TYPE_CHECKING:
    import torch

    from mxconv.bench.gpu_kernel_speed import GpuMachine
    from mxconv.bench.machine import Machine

TABLE = {
    "kernel": ("kernel",),
    "implementation": ("implementation",),
    "tokens": ("num_tokens",),
    "µs": ("seconds", ".2f", 1e6),
    "p10": ("seconds_p10", ".2f", 1e6),
    "p90": ("seconds_p90", ".2f", 1e6),
    "GB/s": ("gigabytes_per_second", ".1f"),
    "bandwidth": ("read_bandwidth", ".1f"),
    "of bandwidth": ("fraction_of_bandwidth", ".3f"),
}
CPU_COLUMNS = {
    "G mul-add/s": ("giga_multiply_adds_per_second", ".0f"),
    "peak": ("compute_peak", ".0f"),
    "of roofline": ("fraction_of_roofline", ".3f"),
}
GPU_COLUMNS = {"torch BF16 µs": ("library_seconds", ".2f", 1e6), "times torch BF16": ("times_library", ".2f")}
ON_CPU = ("bf16", "fp16", "bsfp-full", "bsfp-draft", "mxint8", "mxfp4-int8", "mxfp4-fp32")
OF_CPU = ("kernel", "threads", "roofline")  # options


@dataclass(frozen=True)
class KernelBench:
    """A machine, and what is to be measured on it."""

    machine: "Machine | GpuMachine"
    versions: str
    results: Iterator[Any]
    num_results: int
    columns: dict[str, tuple[Any, ...]]
    note: str = ""


def kernels(
    context: typer.Context,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Kernel: {', '.join(ON_CPU[:-1])} or {ON_CPU[-1]}; on a GPU mxfp4-bf16, and no fp16, mxint8 or "
            "mxfp4-fp32. All by default. Repeatable.",
            autocompletion=one_of(*ON_CPU, "mxfp4-bf16"),
        ),
    ] = None,
    kernel: Annotated[
        list[str] | None,
        typer.Option(
            help="Implementation, or all; this processor's best by default. Repeatable.",
            autocompletion=offered_native_kernels,
        ),
    ] = None,
    num_tokens: Widths = "1,2,4,8,16",
    out_features: Rows = 8192,
    in_features: RowLength = 8192,
    samples: Samples = 40,
    threads: Threads = None,
    device: Annotated[str, typer.Option(help="Device: cpu; cuda or cuda:1 is a GPU, see docs/hardware.md.")] = "cpu",
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
    if is_gpu(context, device):
        bench = _on_gpu(device, only, widths_of(num_tokens), shape, samples)
    else:
        bench = _on_cpu(kernel, only, num_tokens, shape, samples, threads)
    check_outputs(force, [plot, roofline])
    results = []
    with progress_bars("figures") as progress:
        for result in bench.results:
            results.append(result)
            progress("measure", len(results), bench.num_results)
    out = Output(json_output)
    print_machine(out, bench.machine, bench.versions)
    out.table(TABLE | bench.columns, results)
    described = f"{out_features} x {in_features}"
    out.line(f"{described}, medians of {samples}; every product was compared with float64 arithmetic")
    if bench.note:
        out.line(bench.note)
    if plot is not None or roofline is not None:
        from mxconv.bench.plots import bandwidth_charts, roofline_charts
        from mxconv.report.charts import write_picture

        described += f", {bench.machine.described}"
        read, roofs = f"Weights read a second: {described}", f"Roofline: {described}"
        one_panel = [replace(each, implementation=bench.versions) for each in results] if device != "cpu" else results
        out.write(plot, lambda path: write_picture(path, read, bandwidth_charts(one_panel)))
        out.write(roofline, lambda path: write_picture(path, roofs, roofline_charts(results)))
    out.json({"machine": asdict(bench.machine), "results": [asdict(result) for result in results]})


def is_gpu(context: typer.Context, device: str) -> bool:
    """Whether --device names a GPU.

    Raises:
        BadParameter: another device, or a GPU with an option that only the CPU takes.
    """
    if not re.fullmatch(r"cpu|cuda(:\d{1,3})?", device):
        raise typer.BadParameter(f"--device: {device!r}; cpu, cuda or cuda:N is required.")
    for name in OF_CPU if device != "cpu" else ():
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(f"--{name} with --device {device}; it is for the CPU: leave it out.")
    return device != "cpu"


def _on_cpu(
    names: list[str] | None,
    only: Sequence[str] | None,
    num_tokens: str,
    shape: tuple[int, int],
    num_samples: int,
    threads: int | None,
) -> KernelBench:
    from mxconv.bench.machine import implementations, this_machine

    implementation = implementations(names)  # first: what follows needs native kernels

    from mxconv.bench.kernel_speed import KERNELS, bench_kernels
    from mxconv.kernels.engine import usable_processors

    chosen, widths = chosen_of("--only", only, KERNELS), widths_of(num_tokens)
    machine = this_machine(threads or usable_processors())
    results = bench_kernels(chosen, implementation, widths, shape, machine.threads, num_samples)
    count = len(chosen) * len(implementation) * len(widths)
    return KernelBench(machine, machine.compiler, results, count, CPU_COLUMNS)


def _on_gpu(
    device: str, only: Sequence[str] | None, widths: Sequence[int], shape: tuple[int, int], num_samples: int
) -> KernelBench:
    found = _bench_device(device)  # first: what follows needs torch and Triton

    from mxconv.bench.gpu_kernel_speed import KERNELS, bench_gpu_kernels, gpu_machine

    chosen, machine = chosen_of("--only", only, KERNELS, f" with --device {device}"), gpu_machine(found)
    results = bench_gpu_kernels(chosen, widths, shape, found, num_samples)
    is_real = machine.compute_capability is not None
    note = "" if is_real else "times and rates are those of a CPU: they say nothing of a GPU"
    versions = f"torch {machine.torch}, Triton {machine.triton}, {machine.cpu}"
    return KernelBench(machine, versions, results, len(chosen) * len(widths), GPU_COLUMNS, note)


def _bench_device(name: str) -> "torch.device":
    """The device, if the kernels run on it.

    Raises:
        MxconvError: torch or Triton is missing, or there is no such GPU.
    """
    if find_spec("torch") is None:
        raise MxconvError(
            f"device {name}: torch is not installed; a torch with CUDA is required. Install it, on "
            f"Linux. {install_line('gpu')}"
        )
    from mxconv.gpu.device import checked_device

    return checked_device(name)
