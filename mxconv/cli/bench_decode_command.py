"""`mxconv bench decode`: forward passes and whole decodes of a package."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mxconv.cli.bench_options import Samples, Widths, print_machine, widths_of
from mxconv.cli.common_options import Force, Json, Package, grouped, numbers_of
from mxconv.cli.converted import find_or_build
from mxconv.cli.decode_options import LevelOptions, PromptOptions, Runtime
from mxconv.cli.output import Output, check_outputs, progress_bars

if TYPE_CHECKING:
    from mxconv.bench.decode_speed import StrategyResult

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
    "tokens": ("num_tokens",),
    "tokens/s": ("tokens_per_second", ".1f"),
    "speed-up": ("speedup", ".2f"),
    "after prompt": ("decode_speedup", ".2f"),
    "tokens a round": ("tokens_per_round", ".2f"),
    "nodes": ("num_nodes",),
    "acceptance": ("acceptance_rates", ".3f"),
    "of bandwidth": ("fraction_of_bandwidth", ".3f"),
    "same tokens": ("identical_to_greedy",),
}
BATCH_TABLE = {
    "at a time": ("batch",),
    "strategy": ("strategy",),
    "tokens/s": ("tokens_per_second", ".1f"),
    "speed-up": ("speedup", ".2f"),
    "to fewest at a time": ("scaling", ".2f"),
    "tokens a round": ("tokens_per_round", ".2f"),
    "acceptance": ("acceptance_rates", ".3f"),
    "GB/s": ("read_bandwidth", ".1f"),
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

    texts = prompts.read(DEFAULT_PROMPTS)
    from mxconv.bench.machine import implementations

    name, *_ = implementations([runtime.kernel] if runtime.kernel is not None else None)

    from contextlib import ExitStack

    from mxconv.bench.batch_speed import bench_batches
    from mxconv.bench.decode_speed import bench_decoding, four_bit_level
    from mxconv.bench.forward_speed import bench_forwards
    from mxconv.bench.machine import native_engine, this_machine
    from mxconv.bench.plots import write_acceptance_by_position, write_acceptance_by_prompt
    from mxconv.drafts.kinds import parse_draft
    from mxconv.drafts.loader import LoadedPackage
    from mxconv.package.manifest import read_manifest
    from mxconv.text.messages import num_chat_prompts

    widths = widths_of(num_tokens)
    drafts = [parse_draft(text) for text in levels.draft or ()]
    sizes = None if batch is None else sorted(set(numbers_of("--batch", batch, int, 1, MOST_SEQUENCES)))
    if sizes is not None and (ablation or plot is not None):
        raise typer.BadParameter("--batch measures sequences side by side alone: no --ablation or --plot")
    if plot is not None:
        _check_folder(plot, force)
    with progress_bars() as progress:
        folder = find_or_build(package, None, progress)
    names = levels.names or [level.name for level in read_manifest(folder).levels]
    engine, out = native_engine(name, runtime.threads), Output(json_output)
    machine, kv_dtype = this_machine(engine.num_threads), runtime.kv_dtype
    results: Sequence[StrategyResult]
    with ExitStack() as stack:
        settings: dict[str, Any] = {"kv_dtype": kv_dtype, "weights": runtime.weights}
        loaded = stack.enter_context(LoadedPackage(folder, names, name, engine.num_threads, drafts, **settings))
        target, fp32 = loaded.levels[0].name, loaded.levels[:0]
        if ablation:
            four_bit_level(loaded.levels)
            other = LoadedPackage(folder, names, name, engine.num_threads, drafts, activations="fp32", **settings)
            fp32 = stack.enter_context(other).levels
        members: dict[str, Any] = {"machine": asdict(machine), "implementation": name, "target": target}
        members |= settings | {"num_chat_prompts": num_chat_prompts(texts)}
        progress = stack.enter_context(progress_bars("runs"))
        common = (loaded, engine, texts, prompts.max_new_tokens)
        if sizes is not None:
            results = batches = bench_batches(*common, sizes, progress, levels.tree_size)
        else:
            forwards = bench_forwards(loaded, engine, widths, samples, progress)
            results = decodes = bench_decoding(*common, progress, fp32, levels.tree_size)
            members["forwards"] = [asdict(result) for result in forwards]
    print_machine(out, machine, f"{machine.compiler}, {name}")
    if sizes is not None:
        out.table(BATCH_TABLE, results)
        first = batches[0]
        out.line(f"{first.num_sequences} sequences, {first.num_tokens} tokens, prompts included in the time")
    else:
        out.table(FORWARD_TABLE, forwards)
        out.table(STRATEGY_TABLE, results)
        out.line(f"forward passes after a context, medians of {samples}; greedy: plain decoding of {target}")
        if plot is not None and len(results) > 1:
            by_prompt, by_position = PICTURES
            out.write(plot / by_prompt, lambda path: write_acceptance_by_prompt(decodes, machine, path))
            out.write(plot / by_position, lambda path: write_acceptance_by_position(decodes, machine, path))
    out.json(members | {"results": [asdict(result) for result in results]})
    _check_tokens(package, target, results)


def _check_tokens(package: str, target: str, results: "Sequence[StrategyResult]") -> None:
    from mxconv.errors import ModelError

    def name(result: "StrategyResult") -> str:
        batch = getattr(result, "batch", None)
        return result.strategy if batch is None else f"{result.strategy} ({batch})"

    if different := [name(result) for result in results if not result.identical_to_greedy]:
        raise ModelError(
            f"{package}: tokens of {', '.join(different)} differ from those of greedy decoding by {target}; none may. "
            "Please report this as a defect."
        )


def _check_folder(folder: Path, force: bool) -> None:
    """Make the folder, and see before the work that its pictures can be written."""
    from mxconv.errors import MxconvError

    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise MxconvError(f"{folder}: cannot be made ({error.strerror}); a folder is required. Check it.") from error
    check_outputs(force, [folder / name for name in PICTURES])
