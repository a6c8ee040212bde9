"""`mxconv bench kernels` with `--device cuda`: the same products on a GPU."""

import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from mxconv.cli.bench_options import chosen_of, print_machine
from mxconv.cli.output import Output, check_outputs, progress_bars
from mxconv.errors import MxconvError, install_line

if TYPE_CHECKING:
    import torch

    from mxconv.bench.gpu_kernel_speed import GpuMachine

KERNEL_TABLE = {
    "kernel": ("kernel",),
    "implementation": ("implementation",),
    "tokens": ("num_tokens",),
    "µs": ("seconds", ".2f", 1e6),
    "p10": ("seconds_p10", ".2f", 1e6),
    "p90": ("seconds_p90", ".2f", 1e6),
    "GB/s": ("gigabytes_per_second", ".1f"),
    "bandwidth": ("read_bandwidth", ".1f"),
    "of bandwidth": ("fraction_of_bandwidth", ".3f"),
    "torch BF16 µs": ("library_seconds", ".2f", 1e6),
    "times torch BF16": ("times_library", ".2f"),
}


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
    """Measure kernels, and print the table."""
    found = _bench_device(device)  # first: what follows needs torch and Triton

    from mxconv.bench.gpu_kernel_speed import KERNELS, bench_gpu_kernels, gpu_machine
    from mxconv.bench.plots import bandwidth_charts
    from mxconv.report.charts import write_picture

    chosen = chosen_of("--only", only, KERNELS, f" with --device {device}")
    check_outputs(force, [plot])
    machine, results = gpu_machine(found), []
    with progress_bars("figures") as progress:
        for result in bench_gpu_kernels(chosen, widths, shape, found, num_samples):
            results.append(result)
            progress("measure", len(results), len(chosen) * len(widths))
    out = Output(json_output)
    _print_gpu(out, machine)
    out.table(KERNEL_TABLE, results)
    out.line(f"{shape[0]} x {shape[1]}, medians of {num_samples}; every product was compared with float64 arithmetic")
    one_panel = [replace(result, implementation=_versions(machine)) for result in results]
    title = f"Weights read a second: {shape[0]} x {shape[1]}, {machine.described}"
    out.write(plot, lambda path: write_picture(path, title, bandwidth_charts(one_panel)))
    out.json({"machine": asdict(machine), "results": [asdict(result) for result in results]})


def _bench_device(name: str) -> "torch.device":
    """The device, if the kernels run on it; with TRITON_INTERPRET=1 the CPU instead.

    Raises:
        MxconvError: torch or Triton is missing, or there is no such GPU.
    """
    if find_spec("torch") is None:
        raise MxconvError(
            f"device {name}: torch is not installed; a torch with CUDA is required. Install it, on "
            f"Linux. {install_line('gpu')}"
        )
    from mxconv.gpu.device import checked_device

    return checked_device("cpu" if os.environ.get("TRITON_INTERPRET") == "1" else name)


def _versions(machine: "GpuMachine") -> str:
    return f"torch {machine.torch}, Triton {machine.triton}"


def _print_gpu(out: Output, machine: "GpuMachine") -> None:
    print_machine(out, machine, f"{_versions(machine)}, {machine.cpu}")
    if machine.compute_capability is None:
        out.line("times and rates are those of an interpreter: they say nothing of a GPU")
