"""`mxconv bench decode`: forward passes and whole decodes of a package."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mxconv.cli.bench_decode_batch import BATCH, batch_sizes, tell_batches
from mxconv.cli.bench_gpu import decode_on_gpu
from mxconv.cli.bench_options import DEVICE, JSON, THREADS, is_gpu, widths_of
from mxconv.cli.completion import kernels
from mxconv.cli.decode_options import (
    Chat,
    Draft,
    KvDtype,
    Levels,
    System,
    TreeSize,
    check_system,
    level_names,
    tree_size,
)
from mxconv.cli.output import print_json, progress_bars

if TYPE_CHECKING:
    from mxconv.bench.decode_result import DecodeResult
    from mxconv.bench.machine import Machine

PICTURES = ("acceptance_by_prompt.png", "acceptance_by_position.png")
OF_CPU = (
    "levels", "draft", "tree", "batch", "ablation", "plot", "num_tokens", "samples", "kernel", "threads",
    "kv_dtype", "force",
)  # fmt: skip


def decode(
    context: typer.Context,
    package: Annotated[str, typer.Argument(help="The package: a folder, or the Hub id or URL of one.")],
    prompts: Annotated[
        Path | None, typer.Option(help="A .jsonl file, `prompt` or `messages` a line; a few by default.")
    ] = None,
    chat: Chat = False,
    system: System = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens to generate a prompt.")] = 64,
    levels: Levels = None,
    draft: Draft = None,
    tree: TreeSize = "auto",
    batch: BATCH = None,
    ablation: Annotated[
        bool, typer.Option("--ablation", help="Also the 4-bit draft of a 16-bit target with float32 activations.")
    ] = False,
    plot: Annotated[Path | None, typer.Option(help="A folder for pictures: acceptance by prompt and place.")] = None,
    num_tokens: Annotated[str, typer.Option(help="Tokens a forward pass, joined by commas; each 1 to 64.")] = "1,4,8",
    samples: Annotated[int, typer.Option(min=20, help="Samples of each forward pass.")] = 20,
    kernel: Annotated[
        str | None, typer.Option(help="Native implementation; MXCONV_KERNEL sets a default.", autocompletion=kernels)
    ] = None,
    threads: THREADS = None,
    kv_dtype: KvDtype = "fp32",
    device: DEVICE = "cpu",
    source: Annotated[
        str | None,
        typer.Option(help="With --device cuda: the 16-bit checkpoint; by default the one that the package names."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite pictures that exist.")] = False,
    json_output: JSON = False,
) -> None:
    """Tokens a second without drafts, with each, and with all.

    Also with lengths and levels that are chosen while it decodes.

    With --batch: tokens a second of several sequences side by side.
    With --device cuda: transformers on a GPU, the checkpoint in 16 bits, the package, and with its self-draft.
    """
    from mxconv.bench.prompts import DEFAULT_PROMPTS
    from mxconv.speculation.prompts import given_prompts

    check_system(system, chat)
    if is_gpu(context, device, OF_CPU, ["source"]):
        texts = given_prompts(prompts, DEFAULT_PROMPTS, chat, system)
        decode_on_gpu(device, package, source, texts, max_new_tokens, json_output)
        return
    from mxconv.bench.engine import implementations

    name, *_ = implementations([kernel] if kernel is not None else None)

    from contextlib import ExitStack

    from mxconv.bench.batches import bench_batches
    from mxconv.bench.decoding import bench_decoding
    from mxconv.bench.forwards import bench_forwards
    from mxconv.bench.machine import this_machine
    from mxconv.bench.strategies import four_bit_level
    from mxconv.cli.bench_decode_tables import print_tables
    from mxconv.drafts.kinds import parse_draft
    from mxconv.drafts.loader import LoadedPackage
    from mxconv.kernels.engine import choose_engine
    from mxconv.package.manifest import read_manifest
    from mxconv.package.package_folder import find_package
    from mxconv.text.messages import num_chat_prompts

    widths = widths_of(num_tokens)
    texts = given_prompts(prompts, DEFAULT_PROMPTS, chat, system)
    drafts = [parse_draft(text) for text in draft or ()]
    sizes = None if batch is None else batch_sizes(batch)
    if sizes is not None and (ablation or plot is not None):
        raise typer.BadParameter("--batch measures sequences side by side alone: no --ablation or --plot")
    if plot is not None:
        _check_folder(plot, force)
    folder = find_package(package)
    names = level_names(levels) or [level.name for level in read_manifest(folder).levels]
    engine = choose_engine(name, threads)
    assert engine is not None
    machine = this_machine(engine.num_threads)
    with ExitStack() as stack:
        loaded = stack.enter_context(LoadedPackage(folder, names, name, engine.num_threads, drafts, kv_dtype=kv_dtype))
        target = loaded.levels[0].name
        fp32 = None
        if ablation:
            pair = [loaded.levels[0].name, four_bit_level(loaded.levels).name]
            other = LoadedPackage(folder, pair, name, engine.num_threads, activations="fp32", kv_dtype=kv_dtype)
            fp32 = stack.enter_context(other).levels[1]
        progress = stack.enter_context(progress_bars("runs"))
        if sizes is not None:
            found = bench_batches(loaded, engine, texts, max_new_tokens, sizes, progress, tree_size(tree))
            tell_batches(machine, name, found, num_chat_prompts(texts), json_output, package)
            return
        forwards = bench_forwards(loaded, engine, widths, samples, progress)
        results = bench_decoding(loaded, engine, texts, max_new_tokens, progress, fp32, tree_size(tree))
    print_tables(machine, name, forwards, results, json_output)
    if plot is not None:
        _draw(plot, results, machine)
    if json_output:
        members: dict[str, Any] = {"machine": asdict(machine), "implementation": name, "target": target}
        members |= {"kv_dtype": kv_dtype, "num_chat_prompts": num_chat_prompts(texts)}
        members["results"] = [asdict(result) for result in results]
        members["forwards"] = [asdict(result) for result in forwards]
        print_json(members)
    _check_tokens(package, results)


def _check_tokens(package: str, results: "list[DecodeResult]") -> None:
    from mxconv.errors import ModelError

    if different := [result.strategy for result in results if not result.identical_to_greedy]:
        raise ModelError(
            f"{package}: tokens of {', '.join(different)} differ from those of greedy decoding by "
            f"{results[0].levels[0]}; none may. Please report this as a defect."
        )


def _check_folder(folder: Path, force: bool) -> None:
    """Make the folder, and see before the work that its pictures can be written."""
    from mxconv.errors import MxconvError
    from mxconv.report.output_file import check_output

    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise MxconvError(f"{folder}: cannot be made ({error.strerror}); a folder is required. Check it.") from error
    for name in PICTURES:
        check_output(folder / name, force)


def _draw(folder: Path, results: "list[DecodeResult]", machine: "Machine") -> None:
    from mxconv.bench.decode_plot import write_acceptance_by_position, write_acceptance_by_prompt
    from mxconv.report.output_file import write_output

    if len(results) > 1:
        by_prompt, by_position = PICTURES
        write_output(folder / by_prompt, lambda path: write_acceptance_by_prompt(results, machine, path))
        write_output(folder / by_position, lambda path: write_acceptance_by_position(results, machine, path))
