"""`mxconv bench machine`: bandwidth and peaks, and the description that `mxconv cost --hardware this-machine` reads."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mxconv.cli.bench_options import JSON, THREADS, print_machine, widths_of
from mxconv.cli.output import console, print_json, progress_bars

if TYPE_CHECKING:
    from mxconv.bench.capability import Capability
    from mxconv.bench.machine import Machine


def machine(
    num_tokens: Annotated[str, typer.Option(help="Widths at which kernels are measured, each 1 to 64.")] = "1,2,4,8,16",
    kernels: Annotated[bool, typer.Option(help="Also measure what each kernel makes of the roofline.")] = True,
    out_features: Annotated[int, typer.Option(min=1, max=1 << 20, help="Rows of the kernels' matrix.")] = 8192,
    in_features: Annotated[int, typer.Option(min=1, max=1 << 20, help="Columns of the kernels' matrix.")] = 8192,
    samples: Annotated[int, typer.Option(min=20, help="Samples of each figure.")] = 20,
    threads: THREADS = None,
    write: Annotated[bool, typer.Option("--write", help="Keep it as this-machine for `mxconv cost`.")] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the description to this file.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a description that exists.")] = False,
    json_output: JSON = False,
) -> None:
    """Read bandwidth, multiply-add peaks, and where kernels lie below."""
    from mxconv.bench.engine import implementations

    names = implementations(["all"])

    from mxconv.bench.capability import measure_capability, to_toml
    from mxconv.bench.kernels import bench_kernels
    from mxconv.bench.machine import this_machine
    from mxconv.bench.operands import KERNELS
    from mxconv.cost.hardware import THIS_MACHINE, user_folder
    from mxconv.kernels.engine import usable_processors
    from mxconv.report.output_file import check_output, write_output

    widths = widths_of(num_tokens)
    paths = [output] if output is not None else []
    if write:
        user_folder().mkdir(parents=True, exist_ok=True)
        paths.append(user_folder() / f"{THIS_MACHINE}.toml")
    for path in paths:
        check_output(path, force)
    found = this_machine(threads or usable_processors())
    capability = measure_capability(names, found.threads, samples)
    results = []
    if kernels:
        with progress_bars("figures") as progress:
            measured = bench_kernels(KERNELS, names[:1], widths, (out_features, in_features), found.threads, samples)
            for result in measured:
                results.append(result)
                progress("kernels", len(results), len(KERNELS) * len(widths))
    text = to_toml(capability, found, results)
    out = console(json_output)
    _print(capability, found, json_output)
    out.print(text, markup=False, highlight=False)
    for path in paths:
        write_output(path, lambda partial: _write(partial, text))
        out.print(f"wrote {path}", markup=False, highlight=False)
    if json_output:
        members = asdict(capability) | {"results": [asdict(result) for result in results]}
        members["read_bandwidth"] = capability.read_bandwidth.median
        print_json({"machine": asdict(found)} | members)


def _write(path: Path, text: str) -> None:
    path.write_text(text, "utf-8")


def _print(capability: "Capability", found: "Machine", json_output: bool) -> None:
    from rich.table import Table

    out = console(json_output)
    print_machine(out, found)
    bandwidth = capability.read_bandwidth
    out.print(f"{bandwidth.median:.1f} GB/s read ({bandwidth.p10:.1f}..{bandwidth.p90:.1f})", highlight=False)
    table = Table("instruction set", "form", "giga multiply-adds/s", "p10..p90")
    for peak in capability.peaks:
        table.add_row(
            peak.implementation,
            peak.form,
            f"{peak.giga_multiply_adds_per_second:.1f}",
            f"{peak.p10:.1f}..{peak.p90:.1f}",
        )
    out.print(table)
