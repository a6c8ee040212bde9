"""`mxconv bench machine`: bandwidth and peaks, and the description that `mxconv cost --hardware this-machine` reads."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from mxconv.cli.common_options import Force, Json, RowLength, Rows, Samples, Threads, Widths, widths_of
from mxconv.cli.output import Output, check_outputs, print_machine, progress_bars

TABLE = {
    "instruction set": ("implementation",),
    "form": ("form",),
    "giga multiply-adds/s": ("giga_multiply_adds_per_second", ".1f"),
    "p10": ("p10", ".1f"),
    "p90": ("p90", ".1f"),
}


def machine(
    num_tokens: Widths = "1,2,4,8,16",
    kernels: Annotated[bool, typer.Option(help="Measure which share of the roofline each kernel reaches.")] = True,
    out_features: Rows = 8192,
    in_features: RowLength = 8192,
    samples: Samples = 20,
    threads: Threads = None,
    write: Annotated[bool, typer.Option("--write", help="Keep it as this-machine for `mxconv cost`.")] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the description to this file.")] = None,
    force: Force = False,
    json_output: Json = False,
) -> None:
    """Measure read bandwidth, multiply-add peaks and kernels below."""
    from mxconv.bench.machine import implementations, this_machine

    names = implementations(["all"])

    from mxconv.bench.capability import measure_capability, to_toml
    from mxconv.bench.kernel_speed import KERNELS, bench_kernels
    from mxconv.cost.hardware import THIS_MACHINE, user_folder
    from mxconv.kernels.engine import usable_processors

    widths = widths_of(num_tokens)
    paths = [output]
    if write:
        user_folder().mkdir(parents=True, exist_ok=True)
        paths.append(user_folder() / f"{THIS_MACHINE}.toml")
    check_outputs(force, [], paths)
    found = this_machine(threads or usable_processors())
    capability = measure_capability(names, found.threads, samples)
    results = []
    with progress_bars("figures") as progress:
        shape = (out_features, in_features)
        for result in bench_kernels(KERNELS if kernels else (), names[:1], widths, shape, found.threads, samples):
            results.append(result)
            progress("kernels", len(results), len(KERNELS) * len(widths))
    text = to_toml(capability, found, results)
    out = Output(json_output)
    print_machine(out, found, found.compiler)
    read = capability.read_bandwidth
    out.line(f"{read.median:.1f} GB/s read ({read.p10:.1f}..{read.p90:.1f})")
    out.table(TABLE, capability.peaks)
    out.line(text)
    for path in paths:
        out.write_text(path, text)
    members = asdict(capability) | {"results": [asdict(result) for result in results]}
    out.json({"machine": asdict(found)} | members | {"read_bandwidth": read.median})
