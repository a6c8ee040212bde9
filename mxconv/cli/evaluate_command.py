"""`mxconv evaluate`: how far the next-token distributions of a package's levels are from those of its target."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from mxconv.cli.common_options import Force, Json, MaxNewTokens, Package, grouped
from mxconv.cli.converted import find_or_build
from mxconv.cli.decode_options import Chat, Computing, System, check_system
from mxconv.cli.output import Output, check_outputs, progress_bars
from mxconv.report.tables import NOTHING, Columns

if TYPE_CHECKING:
    from mxconv.drafts.loader import LoadedPackage
    from mxconv.verification.evaluation import Evaluation
    from mxconv.verification.scored_texts import ScoredText


@grouped
def evaluate(
    package: Package,
    *,
    texts: Annotated[Path | None, typer.Option(help="A file of text, or .jsonl with `text` in each line.")] = None,
    prompts: Annotated[
        Path | None, typer.Option(help="A .jsonl file of prompts (`prompt`, `messages`), which the target answers.")
    ] = None,
    chat: Chat = False,
    system: System = None,
    max_new_tokens: MaxNewTokens = 64,
    tokens: Annotated[int, typer.Option(min=1, help="Most tokens of the texts or answers.")] = 16_384,
    context: Annotated[
        int, typer.Option(min=8, help="Tokens of each window of a text, of which the second half counts.")
    ] = 512,
    levels: Annotated[
        str | None, typer.Option(help="Levels to compare with the target, joined by commas; all by default.")
    ] = None,
    activations: Annotated[
        Literal["int8", "fp32"], typer.Option(help="Type that 4-bit weights multiply: int8, as in drafts, or fp32.")
    ] = "int8",
    by_layer: Annotated[
        bool, typer.Option("--by-layer", help="Show which parts cost most: the target with one of them in 4 bits.")
    ] = False,
    plot: Annotated[Path | None, typer.Option(help="A .png or .svg file for the picture of --by-layer.")] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a Hub package.")] = None,
    runtime: Computing,
    write: Annotated[bool, typer.Option("--write", help="Store the levels' figures in the manifest.")] = False,
    force: Force = False,
    json_output: Json = False,
) -> None:
    """Measure how near each level is to the target.

    The figures are perplexity, KL divergence and agreement of next-token distributions. Every level is a model by
    itself here, with its whole output head.
    """
    from mxconv.package.manifest import read_manifest, replace_manifest
    from mxconv.package.package_folder import check_writable
    from mxconv.verification.evaluation import evaluate as evaluate_package

    path = texts or prompts
    if path is None or (texts and prompts):
        raise typer.BadParameter("give either --texts or --prompts")
    if chat and texts:
        raise typer.BadParameter("--chat needs --prompts")
    if plot is not None and not by_layer:
        raise typer.BadParameter("--plot needs --by-layer")
    check_system(system, chat)
    check_outputs(force, [plot])
    if write:
        check_writable(package, "the evaluation")
    with progress_bars() as progress:
        folder = find_or_build(package, revision, progress)
    with progress_bars("texts") as progress:

        def read(loaded: "LoadedPackage") -> "list[ScoredText]":
            from mxconv.text.messages import read_prompts
            from mxconv.verification.scored_texts import answers, windows

            if texts is not None:
                return windows(loaded, texts, context, tokens)
            return answers(loaded, read_prompts(path, chat, system), max_new_tokens, tokens, progress)

        found = evaluate_package(
            folder,
            read,
            None if levels is None else [name.strip() for name in levels.split(",")],
            with_parts=by_layer,
            progress=progress,
            activations=activations,
            kernel=runtime.kernel,
            num_threads=runtime.threads,
            kv_dtype=runtime.kv_dtype,
            weights=runtime.weights,
        )
    record, out = found.record(path, context if texts else None), Output(json_output)
    _print(found, "windows" if texts else "answers", out)
    if plot is not None:
        _write_picture(found, plot, out)
    if write:
        replace_manifest(folder, read_manifest(folder).model_copy(update={"evaluation": record}))
    parts = [part.model_dump() for part in found.parts]
    out.json(record.model_dump() | {"left_out": found.left_out, "parts": parts})


def _print(found: "Evaluation", what: str, out: Output) -> None:
    out.line(f"{found.num_tokens} tokens of {found.num_texts} {what} by {found.kernel}; ± is the standard error")
    out.table(_columns("level"), found.levels)
    for line in found.left_out:
        out.line(line)
    if found.parts:
        out.table(_columns("in 4 bits"), found.parts)


def _columns(name: str) -> Columns:
    return {
        name: ("name",),
        "perplexity": (lambda each: _with_error(each.perplexity, each.perplexity_error, 3),),
        "mean KL": (lambda each: _with_error(each.mean_kl, each.mean_kl_error, 5),),
        "99% KL": ("p99_kl", ".4f"),
        "agrees": (lambda each: _with_error(each.agreement, each.agreement_error, 4),),
    }


def _with_error(value: float | None, error: float | None, digits: int) -> str:
    return NOTHING if value is None or error is None else f"{value:.{digits}f} ± {error:.{digits}f}"


def _write_picture(found: "Evaluation", plot: Path, out: Output) -> None:
    """A row a part, the one that costs most at the top."""
    from mxconv.report.charts import Chart, Series, write_picture

    means, errors = zip(*((part.mean_kl or 0, part.mean_kl_error or 0) for part in found.parts), strict=True)
    low, high = ([mean + sign * error for mean, error in zip(means, errors, strict=True)] for sign in (-1, 1))
    series = [Series("in 4 bits", [(mean, row) for row, mean in enumerate(means)], "points", (low, high))]
    chart = Chart("", "mean KL divergence of the target from itself, nats a token", series=series)
    chart.rows = [part.name for part in found.parts]
    out.write(plot, lambda path: write_picture(path, "The target with one part in 4 bits", [chart]))
