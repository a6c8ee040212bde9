"""`mxconv bench kernels --device cuda`: the same products on a GPU, beside the library's BF16 product."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from mxconv.cli.bench_options import print_gpu
from mxconv.cli.output import console, print_json, progress_bars

if TYPE_CHECKING:
    from mxconv.bench.gpu.kernels import GpuKernelResult
    from mxconv.bench.gpu.machine import GpuMachine


def kernels_on_gpu(
    device: str,
    only: Sequence[str] | None,
    widths: Sequence[int],
    shape: tuple[int, int],
    num_samples: int,
    plot: Path | None,
    force: bool,
    json_output: bool,
) -> None:
    """Measure, and print the table."""
    from mxconv.bench.gpu.device import bench_device

    found = bench_device(device)  # first: what follows needs torch and Triton

    from mxconv.bench.gpu.dfloat11 import why_not
    from mxconv.bench.gpu.kernels import bench_gpu_kernels
    from mxconv.bench.gpu.machine import gpu_machine
    from mxconv.bench.gpu.operands import KERNELS
    from mxconv.bench.plot import write_bandwidth_plot
    from mxconv.errors import MxconvError
    from mxconv.report.output_file import check_output, write_output
    from mxconv.report.plot import check_suffix

    chosen = list(dict.fromkeys(only or KERNELS))
    if unknown := [name for name in chosen if name not in KERNELS]:
        raise typer.BadParameter(
            f"--only: {unknown[0]!r}; one of {', '.join(KERNELS)} is required with --device {device}."
        )
    left_out: dict[str, str] = {}
    if "dfloat11" in chosen and (reason := why_not(found)) is not None:
        if only:
            raise MxconvError(
                f"dfloat11: {reason}; the package and a GPU are required. pip install 'dfloat11[cuda12]' may bring "
                "it; or leave it out of --only."
            )
        chosen.remove("dfloat11")
        left_out["dfloat11"] = reason
    if plot is not None:
        check_suffix(plot)
        check_output(plot, force)
    machine = gpu_machine(found)
    results: list[GpuKernelResult] = []
    with progress_bars("figures") as progress:
        total = len(chosen) * len(widths)
        progress("measure", 0, total)
        for result in bench_gpu_kernels(chosen, widths, shape, found, num_samples):
            results.append(result)
            progress("measure", len(results), total)
    if plot is not None:
        versions = f"torch {machine.torch}, Triton {machine.triton}"
        one_panel = [replace(result, implementation=versions) for result in results]
        write_output(plot, lambda path: write_bandwidth_plot(one_panel, machine, path))
    _print(results, machine, left_out, json_output)
    if json_output:
        members = {"machine": asdict(machine), "left_out": left_out}
        print_json({**members, "results": [asdict(result) for result in results]})


def _print(
    results: "list[GpuKernelResult]", machine: "GpuMachine", left_out: Mapping[str, str], json_output: bool
) -> None:
    from rich.table import Table

    table = Table(
        *("kernel", "implementation", "tokens", "µs", "p10..p90", "GB/s", "bandwidth", "of bandwidth"),
        *("torch BF16 µs", "times torch BF16"),
    )
    for r in results:
        table.add_row(
            r.kernel,
            r.implementation,
            str(r.num_tokens),
            f"{r.seconds * 1e6:.2f}",
            f"{r.seconds_p10 * 1e6:.2f}..{r.seconds_p90 * 1e6:.2f}",
            f"{r.gigabytes_per_second:.1f}",
            f"{r.read_bandwidth:.1f}",
            f"{r.fraction_of_bandwidth:.3f}",
            f"{r.library_seconds * 1e6:.2f}",
            f"{r.times_library:.2f}",
        )
    out = console(json_output)
    print_gpu(out, machine)
    out.print(table)
    first = results[0]
    out.print(
        f"{first.out_features} x {first.in_features}, medians of {first.num_samples}; every product was compared with "
        "float64 arithmetic on the weights that NumPy decodes",
        highlight=False,
    )
    for kernel, reason in left_out.items():
        out.print(f"{kernel} was not measured: {reason}", markup=False, highlight=False)
