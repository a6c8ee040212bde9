"""`mxconv bench decode`: forward passes and whole decodes of a package."""

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mxconv.cli.common_options import Force, Json, Package, Samples, Widths, grouped, numbers_of, widths_of
from mxconv.cli.converted import find_or_build
from mxconv.cli.decode_options import LevelOptions, PromptOptions, Runtime
from mxconv.cli.output import Output, check_outputs, print_machine, progress_bars

if TYPE_CHECKING:
    from mxconv.bench.decode_speed import DecodeResult
    from mxconv.bench.machine import Machine

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
    from mxconv.package.manifest import read_manifest
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
    names = levels.names or [level.name for level in read_manifest(folder).levels]
    engine, out = native_engine(name, runtime.threads), Output(json_output)
    machine = this_machine(engine.num_threads)
    with ExitStack() as stack:
        settings: dict[str, Any] = {"kv_dtype": runtime.kv_dtype, "weights": runtime.weights}
        loaded = stack.enter_context(LoadedPackage(folder, names, name, engine.num_threads, drafts, **settings))
        target, fp32 = loaded.levels[0].name, loaded.levels[:0]
        if ablation:
            four_bit_level(loaded.levels)
            other = LoadedPackage(folder, names, name, engine.num_threads, drafts, activations="fp32", **settings)
            fp32 = stack.enter_context(other).levels
        progress = stack.enter_context(progress_bars("runs"))
        forwards = [] if batch is not None else bench_forwards(loaded, engine, widths, samples, progress)
        most, tree = prompts.max_new_tokens, levels.tree_size
        results = bench_decoding(loaded, engine, texts, most, batches, progress, fp32, tree)
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
