"""`mxconv bench decode --device cuda`: a model in transformers on a GPU, in 16 bits, in BSFP, with its self-draft."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from mxconv.cli.bench_options import print_gpu
from mxconv.cli.output import console, format_bytes, print_json, progress_bars

if TYPE_CHECKING:
    from mxconv.bench.gpu.decode_result import GpuDecodeResult
    from mxconv.bench.gpu.machine import GpuMachine
    from mxconv.text.messages import Prompt


def decode_on_gpu(
    device: str, package: str, source: str | None, prompts: "Sequence[Prompt]", max_new_tokens: int, json_output: bool
) -> None:
    """Measure, and print the table."""
    from mxconv.bench.gpu.device import bench_device

    found = bench_device(device)  # first: what follows needs torch and Triton

    from mxconv.bench.gpu.decoding import bench_gpu_decoding
    from mxconv.bench.gpu.machine import gpu_machine

    machine = gpu_machine(found)
    with progress_bars("texts") as progress:
        results = bench_gpu_decoding(package, source, prompts, max_new_tokens, found, progress)
    _print(results, machine, json_output)
    if json_output:
        print_json({"machine": asdict(machine), "results": [asdict(result) for result in results]})


def _print(results: "list[GpuDecodeResult]", machine: "GpuMachine", json_output: bool) -> None:
    from rich.table import Table

    table = Table(
        *(
            "strategy",
            "tokens",
            "tokens/s",
            "speed-up",
            "tokens a round",
            "replays",
            "acceptance",
            "GB/s",
            "of bandwidth",
        ),
        *("loading", "decoding", "as 16 bits", "as target"),
    )
    for r in results:
        table.add_row(
            r.strategy,
            str(r.num_tokens),
            f"{r.tokens_per_second:.1f}",
            f"{r.speedup:.2f}",
            f"{r.tokens_per_round:.2f}",
            str(r.num_replays),
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
        "16-bit: plain greedy decoding of the checkpoint; speed-up is over it. launched: by transformers, kernel by "
        "kernel; the others by replays of CUDA graphs. loading, decoding: peaks of memory. as: "
        "whether all tokens are those of the checkpoint, of the package without drafts",
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
