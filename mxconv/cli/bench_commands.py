"""Benchmarks beside the processor's bandwidth, but for those of kernels.

`mxconv bench machine`  bandwidth and peaks, and the description that `mxconv cost --hardware this-machine` reads
`mxconv bench convert`  a conversion against a copy of the same bytes
`mxconv bench decode`   forward passes and whole decodes of a package
"""

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mxconv.cli.common_options import (
    Force,
    Json,
    Package,
    RowLength,
    Rows,
    Samples,
    Threads,
    Widths,
    chosen_of,
    grouped,
    numbers_of,
    one_of,
    size_option,
    widths_of,
)
from mxconv.cli.converted import find_or_build
from mxconv.cli.decode_options import LevelOptions, PromptOptions, Runtime
from mxconv.cli.output import Output, check_outputs, print_machine, progress_bars
from mxconv.report.tables import format_bytes

if TYPE_CHECKING:
    from mxconv.bench.decode_speed import DecodeResult
    from mxconv.bench.machine import Machine


PEAKS_TABLE = {
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
    out.table(PEAKS_TABLE, capability.peaks)
    out.line(text)
    for path in paths:
        out.write_text(path, text)
    members = asdict(capability) | {"results": [asdict(result) for result in results]}
    out.json({"machine": asdict(found)} | members | {"read_bandwidth": read.median})


COPY_TABLE = {
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
    from mxconv.system.processor import can_forget

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
    out.table(COPY_TABLE, results)
    if not can_forget():
        out.line("this system drops no files from its cache: the cold figures are warm ones, too")
    out.line(f"{format_bytes(results[0]['num_bytes'])} of 16-bit weights, medians of {results[0]['num_samples']}")
    out.json({"machine": asdict(machine), "results": results})


MOST_SEQUENCES = 1024
PICTURES = ("acceptance_by_prompt.png", "acceptance_by_position.png")
FORWARD_TABLE = {
    "level": ("level",),
    "tokens": ("num_tokens",),
    "ms": ("seconds", ".2f", 1e3),
    "p10": ("seconds_p10", ".2f", 1e3),
    "p90": ("seconds_p90", ".2f", 1e3),
    "to fewest": ("relative_seconds", ".2f"),
    "GB/s": ("gigabytes_per_second", ".1f"),
    "bandwidth": ("read_bandwidth", ".1f"),
    "of bandwidth": ("fraction_of_bandwidth", ".3f"),
}
STRATEGY_TABLE = {
    "strategy": ("strategy",),
    "at a time": ("batch",),
    "tokens": ("num_tokens",),
    "tokens/s": ("tokens_per_second", ".1f"),
    "speed-up": ("speedup", ".2f"),
    "after prompt": ("decode_speedup", ".2f"),
    "to fewest at a time": ("scaling", ".2f"),
    "tokens a round": ("tokens_per_round", ".2f"),
    "nodes": ("num_nodes",),
    "acceptance": ("acceptance_rates", ".3f"),
    "of bandwidth": ("fraction_of_bandwidth", ".3f"),
    "same tokens": ("identical_to_greedy",),
}


@grouped
def decode(
    package: Package,
    *,
    prompts: PromptOptions,
    levels: LevelOptions,
    batch: Annotated[
        str | None,
        typer.Option(help="Measure so many sequences side by side in place of one, joined by commas: 1,4,8."),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="A strategy to measure beside greedy; repeat it. All without.")
    ] = None,
    ablation: Annotated[
        bool, typer.Option("--ablation", help="Measure the 4-bit draft with float32 activations too.")
    ] = False,
    plot: Annotated[Path | None, typer.Option(help="A folder for pictures: acceptance by prompt and place.")] = None,
    num_tokens: Widths = "1,4,8",
    samples: Samples = 20,
    runtime: Runtime,
    force: Force = False,
    json_output: Json = False,
) -> None:
    """Measure tokens a second without drafts, with each, and with all.

    Lengths and levels that are chosen while it decodes are measured too.

    Several sequences are decoded side by side with --batch.
    """
    from mxconv.bench.decode_speed import DEFAULT_PROMPTS
    from mxconv.bench.machine import implementations

    texts = prompts.read(DEFAULT_PROMPTS)
    name, *_ = implementations([runtime.kernel] if runtime.kernel is not None else None)

    from contextlib import ExitStack

    from mxconv.bench.decode_speed import bench_decoding, four_bit_level
    from mxconv.bench.forward_speed import bench_forwards
    from mxconv.bench.machine import native_engine, this_machine
    from mxconv.drafts.kinds import parse_draft
    from mxconv.drafts.loader import LoadedPackage
    from mxconv.text.messages import num_chat_prompts

    widths = widths_of(num_tokens)
    drafts = [parse_draft(text) for text in levels.draft or ()]
    batches = [1] if batch is None else sorted(set(numbers_of("--batch", batch, int, 1, MOST_SEQUENCES)))
    if batch is not None and (ablation or plot is not None):
        raise typer.BadParameter("--batch measures sequences side by side alone: no --ablation or --plot")
    if plot is not None:
        _check_folder(plot, force)
    with progress_bars() as progress:
        folder = find_or_build(package, None, progress)
    engine, out = native_engine(name, runtime.threads), Output(json_output)
    machine = this_machine(engine.num_threads)
    with ExitStack() as stack:
        settings: dict[str, Any] = {"kv_dtype": runtime.kv_dtype, "weights": runtime.weights, "memory": runtime.memory}
        opened = folder, levels.names, name, engine.num_threads, drafts
        loaded = stack.enter_context(LoadedPackage(*opened, **settings))
        target, fp32 = loaded.levels[0].name, loaded.levels[:0]
        if ablation:
            four_bit_level(loaded.levels)
            fp32 = stack.enter_context(LoadedPackage(*opened, activations="fp32", **settings)).levels
        progress = stack.enter_context(progress_bars("runs"))
        forwards = [] if batch is not None else bench_forwards(loaded, engine, widths, samples, progress)
        most, tree = prompts.max_new_tokens, levels.tree_size
        results = bench_decoding(loaded, engine, texts, most, batches, progress, fp32, tree, only or ())
    print_machine(out, machine, f"{machine.compiler}, {name}")
    if forwards:
        out.table(FORWARD_TABLE, forwards)
        out.line(f"forward passes after a context, medians of {samples}")
    out.table(STRATEGY_TABLE, results)
    out.line(f"{results[0].num_prompts} prompts, included in the time; greedy: plain decoding of {target}")
    if plot is not None and len(results) > 1:
        _write_pictures(out, plot, results, machine)
    members: dict[str, Any] = {"machine": asdict(machine), "implementation": name, "target": target}
    members |= settings | {"num_chat_prompts": num_chat_prompts(texts)}
    members |= {"forwards": [asdict(each) for each in forwards], "results": [asdict(each) for each in results]}
    out.json(members)
    if different := [f"{each.strategy} ({each.batch})" for each in results if not each.identical_to_greedy]:
        from mxconv.errors import ModelError

        raise ModelError(
            f"{package}: tokens of {', '.join(different)} differ from those of greedy decoding by {target}; none may. "
            "Please report this as a defect."
        )


def _write_pictures(out: Output, folder: Path, results: "list[DecodeResult]", machine: "Machine") -> None:
    from mxconv.bench.plots import acceptance_by_position, acceptance_by_prompt
    from mxconv.report.charts import write_picture

    greedy = results[0]
    told = f"{greedy.levels[0]}, {greedy.num_prompts} prompts, {greedy.num_tokens} tokens, {machine.described}"
    for name, charts in zip(PICTURES, (acceptance_by_prompt(results), acceptance_by_position(results)), strict=True):
        title = f"{name.partition('.')[0].replace('_', ' ').capitalize()}: {told}"
        out.write(folder / name, partial(write_picture, title=title, charts=charts))


def _check_folder(folder: Path, force: bool) -> None:
    """Make the folder, and see before the work that its pictures can be written."""
    from mxconv.errors import MxconvError

    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise MxconvError(f"{folder}: cannot be made ({error.strerror}); a folder is required. Check it.") from error
    check_outputs(force, [folder / name for name in PICTURES])
