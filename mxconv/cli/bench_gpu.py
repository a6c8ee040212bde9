"""`mxconv bench kernels` and `bench decode` with `--device cuda`: the same products and decodes on a GPU."""

import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from mxconv.cli.bench_options import print_gpu
from mxconv.cli.output import console, format_bytes, print_json, progress_bars
from mxconv.errors import MxconvError

if TYPE_CHECKING:
    import torch

    from mxconv.bench.gpu_clock import GpuMachine
    from mxconv.bench.gpu_decoding import GpuDecodeResult
    from mxconv.bench.gpu_kernels import GpuKernelResult
    from mxconv.text.messages import Prompt


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

    from mxconv.bench.gpu_clock import gpu_machine
    from mxconv.bench.gpu_kernels import bench_gpu_kernels
    from mxconv.bench.gpu_operands import KERNELS
    from mxconv.bench.plot import write_bandwidth_plot
    from mxconv.report.output_file import check_output, write_output
    from mxconv.report.picture import check_suffix

    chosen = list(dict.fromkeys(only or KERNELS))
    if unknown := [name for name in chosen if name not in KERNELS]:
        raise typer.BadParameter(
            f"--only: {unknown[0]!r}; one of {', '.join(KERNELS)} is required with --device {device}."
        )
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
    _print_kernels(results, machine, json_output)
    if json_output:
        print_json({"machine": asdict(machine), "results": [asdict(result) for result in results]})


def decode_on_gpu(
    device: str, package: str, source: str | None, prompts: "Sequence[Prompt]", max_new_tokens: int, json_output: bool
) -> None:
    """Measure decoding, and print the table."""
    found = _bench_device(device)

    from mxconv.bench.gpu_clock import gpu_machine
    from mxconv.bench.gpu_decoding import bench_gpu_decoding

    machine = gpu_machine(found)
    with progress_bars("texts") as progress:
        results = bench_gpu_decoding(package, source, prompts, max_new_tokens, found, progress)
    _print_decodes(results, machine, json_output)
    if json_output:
        print_json({"machine": asdict(machine), "results": [asdict(result) for result in results]})


def _bench_device(name: str) -> "torch.device":
    """The device, if the kernels run on it; with TRITON_INTERPRET=1 the CPU instead.

    Raises:
        MxconvError: torch or Triton is missing, or there is no such GPU.
    """
    if find_spec("torch") is None:
        raise MxconvError(
            f"device {name}: torch is not installed; a torch with CUDA is required. Install it: pip install torch, "
            "then pip install 'mxconv[gpu]', on Linux."
        )
    from mxconv.gpu.device import checked_device

    return checked_device("cpu" if os.environ.get("TRITON_INTERPRET") == "1" else name)


def _print_kernels(results: "list[GpuKernelResult]", machine: "GpuMachine", json_output: bool) -> None:
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


def _print_decodes(results: "list[GpuDecodeResult]", machine: "GpuMachine", json_output: bool) -> None:
    from rich.table import Table

    table = Table(
        *("strategy", "tokens", "tokens/s", "speed-up", "tokens a round", "acceptance", "GB/s", "of bandwidth"),
        *("loading", "decoding", "as 16 bits", "as target"),
    )
    for r in results:
        table.add_row(
            r.strategy,
            str(r.num_tokens),
            f"{r.tokens_per_second:.1f}",
            f"{r.speedup:.2f}",
            f"{r.tokens_per_round:.2f}",
            ", ".join("" if rate is None else f"{rate:.3f}" for rate in r.acceptance_rates),
            f"{r.read_bandwidth:.1f}",
            "" if r.fraction_of_bandwidth is None else f"{r.fraction_of_bandwidth:.3f}",
            "" if r.loading_peak_bytes is None else format_bytes(r.loading_peak_bytes),
            "" if r.peak_bytes is None else format_bytes(r.peak_bytes),
            "yes" if r.identical_to_greedy else "no",
            "yes" if r.identical_to_target else "no",
        )
    out = console(json_output)
    print_gpu(out, machine)
    out.print(table)
    out.print(
        "16-bit: plain greedy decoding of the checkpoint; speed-up is over it. loading, decoding: peaks of memory. "
        "as: whether all tokens are those of the checkpoint, of the package without drafts",
        highlight=False,
    )
    for r in results:
        for each in r.differences:
            out.print(
                f"{r.strategy}, prompt {each.prompt}: new token {each.index} is {each.token} (margin {each.margin:.3g} "
                f"over {each.runner_up}), and {each.other_token} with {each.compared_with} (margin "
                f"{each.other_margin:.3g} over {each.other_runner_up})",
                markup=False,
                highlight=False,
            )
