"""`mxconv generate`: decode prompts with the levels of a package."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mxconv.cli.output import console, print_json, progress_bars

if TYPE_CHECKING:
    from mxconv.model.loader import LoadedPackage
    from mxconv.speculative.hierarchy import Generation, Hierarchy


def generate(
    package: Annotated[Path, typer.Argument(help="The package.")],
    prompt: Annotated[str | None, typer.Option(help="A prompt.")] = None,
    prompts: Annotated[Path | None, typer.Option(help="A .jsonl file with a `prompt` a line.")] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens to generate a prompt.")] = 64,
    levels: Annotated[
        str | None, typer.Option(help="Comma-separated levels to use, the target first; all by default.")
    ] = None,
    num_draft_tokens: Annotated[
        str | None, typer.Option(help="Draft tokens a round: one number, or one a draft level: 8,4.")
    ] = None,
    confidence: Annotated[
        str | None, typer.Option(help="Stop drafting below this probability: one number, or one a draft level.")
    ] = None,
    kernel: Annotated[
        str | None, typer.Option(help="Kernels to use: numpy or a native implementation. MXCONV_KERNEL sets a default.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of native kernels; all processors by default.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Decode plainly too, and compare.")] = False,
    trace: Annotated[Path | None, typer.Option(help="Write a JSON line per round and level.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="One JSON object as the last line of stdout.")] = False,
) -> None:
    """Decode greedily: drafts guess, the target decides every token."""
    from mxconv.errors import ModelError
    from mxconv.model.loader import LoadedPackage
    from mxconv.speculative.hierarchy import Hierarchy
    from mxconv.speculative.prompts import read_prompts

    if (prompt is None) == (prompts is None):
        raise typer.BadParameter("give either --prompt or --prompts")
    texts = [prompt] if prompt is not None else read_prompts(prompts) if prompts is not None else []
    names = [name.strip() for name in levels.split(",")] if levels is not None else None
    draft_lengths = _numbers("--num-draft-tokens", num_draft_tokens, int)
    thresholds = _numbers("--confidence", confidence, float)
    if trace is not None:
        _check_new(trace)
    with LoadedPackage(package, names, kernel, threads) as loaded:
        hierarchy = Hierarchy(loaded.levels, draft_lengths, thresholds)
        plain = Hierarchy(loaded.levels[:1]) if check else None
        results = []
        traces = []
        with progress_bars("prompts") as progress:
            for number, text in enumerate(texts, 1):
                result, generation = _run(loaded, hierarchy, plain, text, max_new_tokens)
                results.append(result)
                traces.append(generation)
                progress("generate", number, len(texts))
    members: dict[str, Any] = {"results": results}
    if check:
        members["geomean_speedup"] = _geomean([result["speedup"] for result in results])
    if trace is not None:
        _write_trace(trace, traces)
    _print(members, json_output)
    if json_output:
        print_json(members)
    if check and not all(result["identical_to_target"] for result in results):
        raise ModelError(
            f"{package}: {sum(not r['identical_to_target'] for r in results)} of {len(results)} texts differ from "
            "plain decoding; none may. Please report this as a defect."
        )


def _run(
    loaded: "LoadedPackage", hierarchy: "Hierarchy", plain: "Hierarchy | None", text: str, max_new_tokens: int
) -> tuple[dict[str, Any], "Generation"]:
    """Decode one prompt; the result's members, and the generation for its trace."""
    tokenizer = loaded.tokenizer
    ids = tokenizer.encode(text)
    generation = hierarchy.generate(ids, max_new_tokens, tokenizer.eos_token_ids)
    result: dict[str, Any] = {
        "prompt": text,
        "text": tokenizer.decode(generation.token_ids),
        "token_ids": generation.token_ids,
        "seconds": generation.seconds,
        "tokens_per_second": generation.tokens_per_second,
        "rounds": generation.trace.num_rounds,
        "levels": [
            {
                "name": level.name,
                "num_forwards": level.num_forwards,
                "num_proposed": level.num_proposed,
                "num_accepted": level.num_accepted,
                "acceptance_rate": level.acceptance_rate,
                "seconds": level.seconds,
            }
            for level in generation.trace.statistics
        ],
    }
    if plain is not None:
        expected = plain.generate(ids, max_new_tokens, tokenizer.eos_token_ids)
        result["identical_to_target"] = expected.token_ids == generation.token_ids
        result["speedup"] = expected.seconds / generation.seconds
    return result, generation


def _numbers(flag: str, text: str | None, kind: type[Any]) -> list[Any] | None:
    """A comma-separated list of numbers in the flag's range."""
    if text is None:
        return None
    low, high = (1, 64) if kind is int else (0, 1)
    try:
        numbers = [kind(part) for part in text.split(",")]
    except ValueError as error:
        raise typer.BadParameter(f"{flag}: {text!r}; numbers joined by commas are required.") from error
    if not all(low <= number <= high for number in numbers):
        raise typer.BadParameter(f"{flag}: {text!r}; numbers from {low} to {high} are required.")
    return numbers


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


def _write_trace(path: Path, generations: "list[Generation]") -> None:
    import json
    from dataclasses import asdict

    from mxconv.errors import ModelError

    lines = [
        json.dumps({"prompt": number, **asdict(entry)})
        for number, generation in enumerate(generations)
        for entry in generation.trace.entries
    ]
    try:
        with path.open("x") as file:
            file.write("\n".join(lines) + "\n")
    except OSError as error:
        raise ModelError(f"{path}: cannot be written ({error.strerror}). Check the path.") from error


def _print(members: dict[str, Any], json_output: bool) -> None:
    from rich.markup import escape
    from rich.table import Table

    out = console(json_output)
    results = members["results"]
    for result in results:
        out.print(f"[dim]{escape(result['prompt'])}[/dim]{escape(result['text'])}", highlight=False)
    table = Table("level", "forward passes", "proposed", "accepted", "acceptance", "seconds")
    for index, level in enumerate(results[0]["levels"]):
        total = {
            key: sum(result["levels"][index][key] for result in results)
            for key in ("num_forwards", "num_proposed", "num_accepted", "seconds")
        }
        rate = f"{total['num_accepted'] / total['num_proposed']:.3f}" if total["num_proposed"] else ""
        table.add_row(
            level["name"],
            str(total["num_forwards"]),
            str(total["num_proposed"] or ""),
            str(total["num_accepted"] or ""),
            rate,
            f"{total['seconds']:.2f}",
        )
    out.print(table)
    num_tokens = sum(len(result["token_ids"]) for result in results)
    seconds = sum(result["seconds"] for result in results)
    rounds = sum(result["rounds"] for result in results)
    out.print(
        f"{num_tokens} tokens in {rounds} rounds of the target ({num_tokens / rounds:.2f} a round), {seconds:.1f} s",
        highlight=False,
    )
    if "geomean_speedup" in members:
        same = sum(result["identical_to_target"] for result in results)
        out.print(
            f"{same} of {len(results)} texts identical to plain greedy decoding; "
            f"{members['geomean_speedup']:.2f}x its speed",
            highlight=False,
        )
