"""`mxconv generate`: decode prompts with the levels of a package."""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from mxconv.cli.common_options import Json, KvBytes, MaxNewTokens, Package, grouped
from mxconv.cli.decode_options import Batch, Chat, Drafting, Runtime, SamplingOptions, System, check_system
from mxconv.cli.generate_results import geomean, print_results, result_of
from mxconv.cli.output import Output, progress_bars

if TYPE_CHECKING:
    from mxconv.decode import Answer, Options, TextModel
    from mxconv.progress import Progress
    from mxconv.serving.batch import BatchAnswer
    from mxconv.speculation.generation import Generation
    from mxconv.text.messages import Prompt

INTERRUPTED = 130  # as shells report a process that Ctrl-C ended


@dataclass(frozen=True)
class Together:
    """All prompts, and how long they took by a clock on the wall."""

    answers: "list[BatchAnswer]"
    seconds: float

    @property
    def is_whole(self) -> bool:
        """Whether no interrupt came before the end."""
        return all(answer.generation.ending != "interrupted" for answer in self.answers)


@grouped
def generate(
    package: Package,
    *,
    prompt: Annotated[str | None, typer.Option(help="A prompt.")] = None,
    prompts: Annotated[Path | None, typer.Option(help="A .jsonl file with a `prompt` a line.")] = None,
    max_new_tokens: MaxNewTokens = 64,
    drafting: Drafting,
    sampling: SamplingOptions,
    batch: Batch = None,
    kv_bytes: KvBytes = None,
    accept: Annotated[
        Literal["coupled", "rejection"],
        typer.Option(
            help="How drafts are verified when tokens are drawn: coupled gives the same tokens with any drafts or "
            "none, rejection the same distribution."
        ),
    ] = "coupled",
    chat: Chat = False,
    system: System = None,
    stop: Annotated[list[str] | None, typer.Option(help="A text that ends the generation. Repeatable.")] = None,
    runtime: Runtime,
    check: Annotated[bool, typer.Option("--check", help="Decode plainly too, and compare.")] = False,
    trace: Annotated[Path | None, typer.Option(help="Write a JSON line per round and level; inspect draws it.")] = None,
    json_output: Json = False,
) -> None:
    """Decode: drafts guess, the target decides every token. Ctrl-C ends it with what there is.

    How tokens are chosen is as generation_config.json recommends, greedy without; options win.
    """
    from mxconv.errors import ModelError
    from mxconv.progress import silent
    from mxconv.speculation.prompts import given_prompts, text_of
    from mxconv.speculation.trace_lines import trace_lines

    if (prompt is None) == (prompts is None):
        raise typer.BadParameter("give either --prompt or --prompts")
    if batch is not None and prompts is None:
        raise typer.BadParameter("--batch needs --prompts")
    if kv_bytes is not None and batch is None:
        raise typer.BadParameter("--kv-bytes needs --batch")
    check_system(system, chat)
    given = given_prompts(prompts, [] if prompt is None else [prompt], chat, system)
    options: Options = {
        "max_new_tokens": max_new_tokens,
        **drafting.options,
        **sampling.given,
        "seed": sampling.seed,
        "accept": accept,
        "stop_strings": stop or [],
    }
    if trace is not None:
        check_new_trace(trace)
    results: list[dict[str, Any]] = []
    lines: list[dict[str, Any]] = []
    generations: list[Generation] = []
    streams = prompt is not None and not json_output
    with (
        runtime.load(package, drafting) as model,
        progress_bars("tokens" if prompt is not None else "prompts") as progress,
    ):
        in_use = model.sampling(options)
        if check and accept == "rejection" and in_use.selection().sampling is not None:
            raise typer.BadParameter("--check compares tokens, and under --accept rejection those differ")
        if in_use.is_from_file:
            Output(json_output=True).line(f"sampling: {in_use.told}", "dim")
        target = model.loaded.levels[0].name
        together = plain = None
        if batch is not None:
            together = _decode_together(model, given, options, batch, kv_bytes, trace is not None, progress)
            if check and together.is_whole:
                plain = _decode_together(model, given, _plain(options), batch, kv_bytes, False, progress)
                if not plain.is_whole:  # there is nothing to compare with
                    generations += [answer.generation for answer in plain.answers]
                    plain = None
        for number, each in enumerate(given, 1):
            text = text_of(each)
            answer: Answer | BatchAnswer
            if together is not None:
                answer = together.answers[number - 1]
            else:
                shown = text if streams else None
                on_token = progress if prompt is not None else silent
                shown = f"{shown}\n" if shown is not None and chat else shown  # an answer begins on a line of its own
                answer = _streamed(model, each, options, trace is not None, shown, on_token)
            results.append(result_of(each, answer))
            generations.append(answer.generation)
            if trace is not None:
                ids, tokenizer = model.encode(answer.prompt), model.loaded.tokenizer
                lines += trace_lines(number - 1, answer.generation, text, ids, tokenizer)
            if answer.generation.ending == "interrupted" and together is None:
                break
            if check and together is None:
                expected = model.generate(answer.prompt, **_plain(options))
                if expected.generation.ending == "interrupted":
                    generations.append(expected.generation)
                    break
                results[-1]["identical_to_target"] = _is_same(answer, expected)
                results[-1]["speedup"] = expected.generation.seconds / answer.generation.seconds
                results[-1]["plain_tokens_per_second"] = expected.generation.decoding_tokens_per_second
            elif plain is not None and answer.generation.ending != "error":
                results[-1]["identical_to_target"] = _is_same(answer, plain.answers[number - 1])
            if prompts is not None and together is None:
                progress("generate", number, len(given))
    members: dict[str, Any] = {
        "results": results,
        "target": target,
        "kv_dtype": runtime.kv_dtype,
        "sampling": in_use.members,
    }
    if together is not None:
        members["seconds"] = together.seconds
    if speedups := [result["speedup"] for result in results if "speedup" in result]:
        members["geomean_speedup"] = geomean(speedups)
    elif together is not None and plain is not None:  # texts share passes: there is one speed, that of all
        members |= {"plain_seconds": plain.seconds, "geomean_speedup": plain.seconds / together.seconds}
    if trace is not None:
        _write_trace(trace, lines)
    out = Output(json_output)
    print_results(members, out, not streams)
    out.json(members)
    if different := sum(not result.get("identical_to_target", True) for result in results):
        raise ModelError(
            f"{package}: {different} of {len(results)} texts differ from plain decoding of {target}; none may. "
            "Please report this as a defect."
        )
    if failed := [result["error"] for result in results if "error" in result]:
        raise ModelError(f"{prompts}: {len(failed)} of {len(results)} prompts came to no end; the first: {failed[0]}")
    if any(generation.ending == "interrupted" for generation in generations):
        raise typer.Exit(INTERRUPTED)


def _streamed(
    model: "TextModel",
    prompt: "Prompt",
    options: "Options",
    records_trees: bool,
    shown: str | None,
    progress: "Progress",
) -> "Answer":
    """Decode one prompt by itself; `shown` is printed, and then the text as it comes; None prints nothing."""
    answer = model.stream(prompt, **options)
    answer.generation.trace.records_trees = records_trees
    out = Output(json_output=shown is None)
    if shown is not None:
        out.line(shown, "dim", end="")
    with suppress(KeyboardInterrupt):
        for piece in answer:
            if shown is not None:
                out.line(piece, end="")
            else:
                progress("generate", len(answer.token_ids), options["max_new_tokens"])
    if shown is not None:
        out.line("")
    return answer


def _plain(options: "Options") -> "Options":
    """The same options without drafts."""
    return {**options, "drafts": [], "num_draft_tokens": None, "confidence": None}


def _is_same(answer: "Answer | BatchAnswer", expected: "Answer | BatchAnswer") -> bool:
    """Whether tokens and text are those without drafts."""
    return expected.token_ids == answer.token_ids and expected.text == answer.text


def _decode_together(
    model: "TextModel",
    prompts: "Sequence[Prompt]",
    options: "Options",
    batch: int,
    kv_bytes: int | None,
    records_trees: bool,
    progress: "Progress",
) -> Together:
    """Prompts side by side, as far as they come before an interrupt."""
    from mxconv.serving.batch import Batch

    begin = time.perf_counter()
    decoded = Batch(model, prompts, options, batch, kv_bytes, records_trees)
    with suppress(KeyboardInterrupt):
        decoded.run(lambda num_done: progress("generate", num_done, len(prompts)))
    return Together(decoded.answers, time.perf_counter() - begin)


def check_new_trace(path: Path) -> None:
    """Check before the work that a trace can be created."""
    from mxconv.errors import ModelError

    if path.exists():
        raise ModelError(f"{path}: exists; nothing is overwritten. Choose another file.")
    if not path.parent.is_dir():
        raise ModelError(f"{path}: its folder does not exist; an existing folder is required. Create it first.")


def _write_trace(path: Path, lines: list[dict[str, Any]]) -> None:
    """A line an entry."""
    import json

    from mxconv.errors import ModelError

    try:
        with path.open("x", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
    except OSError as error:
        raise ModelError(f"{path}: cannot be written ({error.strerror}). Check the path.") from error
