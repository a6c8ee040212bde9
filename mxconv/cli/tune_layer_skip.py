"""`mxconv tune layer-skip`: which layers of the target to leave out of its draft."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mxconv.cli.bench_options import JSON, THREADS
from mxconv.cli.generate_options import KERNEL
from mxconv.cli.output import console, print_json, progress_bars

if TYPE_CHECKING:
    from mxconv.speculation.self_drafts.layer_search import LayerSearch

MAX_ROWS = 12


def layer_skip(
    package: Annotated[str, typer.Argument(help="The package: a folder, or the Hub id or URL of one.")],
    prompts: Annotated[Path, typer.Option(help="A .jsonl file with a `prompt` a line, like those to come.")],
    max_new_tokens: Annotated[int, typer.Option(min=2, help="Tokens that the target writes a prompt.")] = 64,
    evaluations: Annotated[int, typer.Option(min=1, help="Sets of layers to try.")] = 100,
    num_draft_tokens: Annotated[int, typer.Option(min=1, max=64, help="Draft tokens a round.")] = 4,
    seed: Annotated[int, typer.Option(min=0, help="Of the search.")] = 0,
    kernel: KERNEL = None,
    threads: THREADS = None,
    write: Annotated[
        bool, typer.Option("--write", help="Make it a level of the package; `mxconv tune` then says if it pays.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the set of layers that the package has.")] = False,
    json_output: JSON = False,
) -> None:
    """Search the layer parts that the target drafts best without.

    They are attention and MLP parts, as --draft layer-skip:LAYERS takes them.

    Scored is the speed-up where time is bytes of weights read, on texts that the target itself writes.
    """
    from mxconv.bench.prompts import prompt_ids
    from mxconv.engine.loader import LoadedPackage
    from mxconv.engine.skipped import Skipped
    from mxconv.package.manifest import read_manifest, replace_manifest
    from mxconv.package.package_folder import check_writable, find_package
    from mxconv.speculation.prompts import read_prompts
    from mxconv.tuning.layers import tune_layers, with_layer_skip

    if write:
        check_writable(package, "the level")
    texts = read_prompts(prompts)
    folder = find_package(package)
    manifest = read_manifest(folder)
    if write:  # before the work: may it be written?
        with_layer_skip(manifest, Skipped(), num_draft_tokens, force)
    with (
        LoadedPackage(folder, [manifest.levels[0].name], kernel, threads) as loaded,
        progress_bars("evaluations") as progress,
    ):
        ids = prompt_ids(loaded.tokenizer, loaded.folder, texts)
        search = tune_layers(loaded, ids, max_new_tokens, evaluations, num_draft_tokens, seed, progress)
    best = search.best
    pays = best.score > 1 and len(best.skipped) > 0
    if write and pays:
        replace_manifest(folder, with_layer_skip(manifest, best.skipped, num_draft_tokens, force))
    _print(search, pays, write, json_output)
    if json_output:
        print_json(
            {
                "layers": str(best.skipped),
                "predicted_speedup": best.score,
                "num_draft_tokens": num_draft_tokens,
                "num_evaluations": len(search.trail),
                "written": write and pays,
                "trail": [{"layers": str(trial.skipped), "predicted_speedup": trial.score} for trial in search.trail],
            }
        )


def _print(search: "LayerSearch", pays: bool, write: bool, json_output: bool) -> None:
    from rich.table import Table

    out = console(json_output)
    table = Table("left out", "parts", "predicted speed-up")
    for trial in sorted(search.trail, key=lambda trial: -trial.score)[:MAX_ROWS]:
        table.add_row(str(trial.skipped), str(len(trial.skipped)), f"{trial.score:.3f}")
    out.print(table)
    out.print(f"{len(search.trail)} sets; best: --draft layer-skip:{search.best.skipped}", highlight=False)
    if not pays:
        out.print("no set pays: the target without layers is no draft for it", highlight=False)
    elif write:
        out.print("written as level layer-skip; run mxconv tune PACKAGE to see which levels to use", highlight=False)
