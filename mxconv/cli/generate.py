"""`mxconv generate`: decode prompts with the levels of a package."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mxconv.cli.generate_options import (
    ACCEPT,
    CONFIDENCE,
    DRAFT,
    KERNEL,
    KV_DTYPE,
    LEVELS,
    NUM_DRAFT_TOKENS,
    SEED,
    TEMPERATURE,
    THREADS,
    TOP_K,
    TOP_P,
    TREE,
    draft_lengths,
    level_names,
    thresholds,
    tree_size,
)
from mxconv.cli.output import console, print_json, progress_bars

if TYPE_CHECKING:
    from mxconv.speculative.generation import Generation
    from mxconv.speculative.text_model import Answer, Options, TextModel

INTERRUPTED = 130  # as shells report a process that Ctrl-C ended


def generate(
    package: Annotated[str, typer.Argument(help="The package: a folder or a Hub id.")],
    prompt: Annotated[str | None, typer.Option(help="A prompt.")] = None,
    prompts: Annotated[Path | None, typer.Option(help="A .jsonl file with a `prompt` a line.")] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens to generate a prompt.")] = 64,
    levels: LEVELS = None,
    draft: DRAFT = None,
    num_draft_tokens: NUM_DRAFT_TOKENS = None,
    confidence: CONFIDENCE = None,
    tree: TREE = "auto",
    temperature: TEMPERATURE = 0.0,
    top_k: TOP_K = 0,
    top_p: TOP_P = 1.0,
    seed: SEED = 0,
    accept: ACCEPT = "coupled",
    chat: Annotated[bool, typer.Option("--chat", help="Put prompts into the model's chat template.")] = False,
    system: Annotated[str | None, typer.Option(help="With --chat: a system message before each prompt.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="A text that ends the generation. Repeatable.")] = None,
    kernel: KERNEL = None,
    threads: THREADS = None,
    kv_dtype: KV_DTYPE = "fp32",
    check: Annotated[bool, typer.Option("--check", help="Decode plainly too, and compare.")] = False,
    trace: Annotated[Path | None, typer.Option(help="Write a JSON line per round and level; inspect draws it.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="One JSON object as the last line of stdout.")] = False,
) -> None:
    """Decode: drafts guess, the target decides every token. Ctrl-C ends it with what there is."""
    from mxconv.errors import ModelError
    from mxconv.speculative.prompts import read_prompts
    from mxconv.speculative.text_model import load
    from mxconv.speculative.trace_lines import trace_lines

    if (prompt is None) == (prompts is None):
        raise typer.BadParameter("give either --prompt or --prompts")
    if check and accept == "rejection" and temperature:
        raise typer.BadParameter("--check compares tokens, and under --accept rejection those differ")
    if system is not None and not chat:
        raise typer.BadParameter("--system needs --chat")
    texts = [prompt] if prompt is not None else read_prompts(prompts) if prompts is not None else []
    options: Options = {
        "max_new_tokens": max_new_tokens,
        "num_draft_tokens": draft_lengths(num_draft_tokens),
        "confidence": thresholds(confidence),
        "tree": tree_size(tree),
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "seed": seed,
        "accept": accept,
        "stop_strings": stop or [],
    }
    if trace is not None:
        _check_new(trace)
    results: list[dict[str, Any]] = []
    lines: list[dict[str, Any]] = []
    generations: list[Generation] = []
    streams = prompt is not None and not json_output
    with (
        load(package, draft or (), kernel, threads, level_names(levels), kv_dtype) as model,
        progress_bars("tokens" if prompt is not None else "prompts") as progress,
    ):
        target = model.loaded.levels[0].name
        for number, text in enumerate(texts, 1):
            answer = model.stream(_messages(text, system) if chat else text, **options)
            answer.generation.trace.records_trees = trace is not None
            if streams:
                console(json_output).print(text, style="dim", end="", highlight=False, markup=False)
            with suppress(KeyboardInterrupt):
                for piece in answer:
                    if streams:
                        console(json_output).print(piece, end="", highlight=False, markup=False)
                    elif prompt is not None:
                        progress("generate", len(answer.token_ids), max_new_tokens)
            if streams:
                console(json_output).print()
            results.append(_result(text, answer))
            generations.append(answer.generation)
            if trace is not None:
                ids, tokenizer = model.encode(answer.prompt), model.loaded.tokenizer
                lines += trace_lines(number - 1, answer.generation, text, ids, tokenizer)
            if answer.generation.ending == "interrupted":
                break
            if check:
                results[-1] |= _comparison(model, answer, options)
            if prompts is not None:
                progress("generate", number, len(texts))
    members: dict[str, Any] = {"results": results, "target": target, "kv_dtype": kv_dtype}
    if check and (speedups := [result["speedup"] for result in results if "speedup" in result]):
        members["geomean_speedup"] = _geomean(speedups)
    if trace is not None:
        _write_trace(trace, lines)
    _print(members, json_output, with_texts=not streams)
    if json_output:
        print_json(members)
    if different := sum(not result.get("identical_to_target", True) for result in results):
        raise ModelError(
            f"{package}: {different} of {len(results)} texts differ from plain decoding of {target}; none may. "
            "Please report this as a defect."
        )
    if generations[-1].ending == "interrupted":
        raise typer.Exit(INTERRUPTED)


def _messages(text: str, system: str | None) -> list[dict[str, str]]:
    first = [] if system is None else [{"role": "system", "content": system}]
    return [*first, {"role": "user", "content": text}]


def _result(text: str, answer: "Answer") -> dict[str, Any]:
    generation = answer.generation
    return {
        "prompt": text,
        "text": answer.text,
        "token_ids": generation.token_ids,
        "ending": generation.ending,
        "seconds": generation.seconds,
        "tokens_per_second": generation.tokens_per_second,
        "rounds": generation.trace.num_rounds,
        "levels": [
            {
                "name": level.name,
                "num_forwards": level.num_forwards,
                "num_proposed": level.num_proposed,
                "num_nodes": level.num_nodes,
                "nodes_by_depth": level.nodes_by_depth,
                "num_accepted": level.num_accepted,
                "acceptance_rate": level.acceptance_rate,
                "acceptance_by_position": level.acceptance_by_position,
                "seconds": level.seconds,
            }
            for level in generation.trace.statistics
        ],
    }


def _comparison(model: "TextModel", answer: "Answer", options: "Options") -> dict[str, Any]:
    """The same prompt without drafts."""
    plain: Options = {**options, "drafts": [], "num_draft_tokens": None, "confidence": None}
    expected = model.generate(answer.prompt, **plain)
    return {
        "identical_to_target": expected.token_ids == answer.token_ids and expected.text == answer.text,
        "speedup": expected.generation.seconds / answer.generation.seconds,
    }


def _check_new(path: Path) -> None:
    """Before the work, not after it: a file that can be created."""
    from mxconv.errors import ModelError

    if path.exists():
        raise ModelError(f"{path}: exists; nothing is overwritten. Choose another file.")
    if not path.parent.is_dir():
        raise ModelError(f"{path}: its folder does not exist; an existing folder is required. Create it first.")


def _geomean(numbers: list[float]) -> float:
    from math import exp, log

    return exp(sum(log(number) for number in numbers) / len(numbers))


def _write_trace(path: Path, lines: list[dict[str, Any]]) -> None:
    import json

    from mxconv.errors import ModelError

    try:
        with path.open("x", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
    except OSError as error:
        raise ModelError(f"{path}: cannot be written ({error.strerror}). Check the path.") from error


def _print(members: dict[str, Any], json_output: bool, with_texts: bool) -> None:
    from rich.markup import escape
    from rich.table import Table

    out = console(json_output)
    results = members["results"]
    for result in results if with_texts else []:
        out.print(f"[dim]{escape(result['prompt'])}[/dim]{escape(result['text'])}", highlight=False)
    has_trees = any(level["num_nodes"] > level["num_proposed"] for result in results for level in result["levels"])
    nodes = ["nodes"] if has_trees else []
    table = Table("level", "forward passes", "proposed", *nodes, "accepted", "acceptance", "seconds")
    for index, level in enumerate(results[0]["levels"]):
        total = {
            key: sum(result["levels"][index][key] for result in results)
            for key in ("num_forwards", "num_proposed", "num_nodes", "num_accepted", "seconds")
        }
        rate = f"{total['num_accepted'] / total['num_proposed']:.3f}" if total["num_proposed"] else ""
        table.add_row(
            level["name"],
            str(total["num_forwards"]),
            str(total["num_proposed"] or ""),
            *([str(total["num_nodes"] or "")] if has_trees else []),
            str(total["num_accepted"] or ""),
            rate,
            f"{total['seconds']:.2f}",
        )
    out.print(table)
    num_tokens = sum(len(result["token_ids"]) for result in results)
    seconds = sum(result["seconds"] for result in results)
    rounds = sum(result["rounds"] for result in results)
    out.print(
        # an interrupt may come before the first round
        f"{num_tokens} tokens in {rounds} rounds of the target ({num_tokens / max(rounds, 1):.2f} a round), "
        f"{seconds:.1f} s",
        highlight=False,
    )
    if "geomean_speedup" in members:
        checked = [result["identical_to_target"] for result in results if "identical_to_target" in result]
        out.print(
            f"{sum(checked)} of {len(checked)} texts identical to plain decoding of {members['target']}; "
            f"{members['geomean_speedup']:.2f}x its speed",
            markup=False,
            highlight=False,
        )
