"""`mxconv generate`: decode prompts with the levels of a package."""

import json
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from mxconv.cli.common_options import Json, KvBytes, MaxNewTokens, Package, grouped
from mxconv.cli.decode_options import (
    Batch,
    ChatOrRaw,
    ConstraintOptions,
    Drafting,
    Runtime,
    SamplingOptions,
    System,
    TemplateVar,
    check_system,
    variables_of,
)
from mxconv.cli.generate_results import print_results, result_of
from mxconv.cli.output import Output, progress_bars

if TYPE_CHECKING:
    from mxconv.decode import Answer, Options, TextModel
    from mxconv.progress import Progress
    from mxconv.text.messages import Prompt

INTERRUPTED = 130  # as shells report a process that Ctrl-C ended


@dataclass
class DecodedPrompts:
    """Prompts and their answers in that order, as far as they came; with `check` also those without drafts."""

    model: "TextModel"
    prompts: "Sequence[Prompt]"
    options: "Options"
    check: bool
    records_trees: bool
    progress: "Progress"
    answers: "list[Answer]" = field(default_factory=list)
    plain: "list[Answer]" = field(default_factory=list)
    interrupted: bool = False
    seconds: float | None = None  # by the clock, of prompts that are decoded side by side; likewise the next one
    plain_seconds: float | None = None

    @property
    def plain_options(self) -> "Options":
        """The same options without drafts."""
        return {**self.options, "drafts": [], "num_draft_tokens": None, "confidence": None}

    def one_by_one(self, shown: str | None) -> None:
        """Decode prompts one after another; where `shown` is a text, print it, and the one answer as it comes."""
        out, num_prompts = Output(json_output=False), len(self.prompts)
        for prompt in self.prompts:
            answer = self.model.stream(prompt, **self.options)
            answer.generation.trace.records_trees = self.records_trees
            if shown is not None:
                out.line(shown, "dim", end="")
            with suppress(KeyboardInterrupt):
                for piece in answer:
                    if shown is not None:
                        out.line(piece, end="")
                    elif num_prompts == 1:
                        self.progress("generate", len(answer.token_ids), self.options["max_new_tokens"])
            if shown is not None:
                out.line("")
            self.answers.append(answer)
            ending = answer.generation.ending
            if self.check and ending != "interrupted":
                plain = self.model.generate(prompt, **self.plain_options)
                ending = plain.generation.ending
                self.plain += [plain] if ending != "interrupted" else []
            if ending == "interrupted":
                self.interrupted = True
                return
            if num_prompts > 1:
                self.progress("generate", len(self.answers), num_prompts)

    def side_by_side(self, batch: int, kv_bytes: int | None) -> None:
        """Decode prompts side by side, as far as they come before an interrupt."""
        from mxconv.serving.llm_engine import Batch

        def run(options: "Options", records_trees: bool) -> "tuple[list[Answer], float]":
            begin = time.perf_counter()
            decoding = Batch(self.model, self.prompts, options, batch, kv_bytes, records_trees)
            with suppress(KeyboardInterrupt):
                decoding.run(lambda num_done: self.progress("generate", num_done, len(self.prompts)))
            self.interrupted = any(answer.generation.ending == "interrupted" for answer in decoding.answers)
            return decoding.answers, time.perf_counter() - begin

        self.answers, self.seconds = run(self.options, self.records_trees)
        if self.check and not self.interrupted:
            plain, seconds = run(self.plain_options, False)
            if not self.interrupted:  # else there is nothing to compare with
                self.plain, self.plain_seconds = plain, seconds


@grouped
def generate(
    package: Package,
    *,
    prompt: Annotated[
        str | None, typer.Option("--prompt", "-p", help="A prompt; - or no prompt reads it from standard input.")
    ] = None,
    prompts: Annotated[Path | None, typer.Option(help="A .jsonl file of prompts (`prompt`, `messages`).")] = None,
    max_new_tokens: MaxNewTokens = 64,
    drafting: Drafting,
    sampling: SamplingOptions,
    constraint: ConstraintOptions,
    batch: Batch = None,
    kv_bytes: KvBytes = None,
    accept: Annotated[
        Literal["coupled", "rejection", "block"],
        typer.Option(
            help="How drafts are verified when tokens are drawn: coupled gives the same tokens with any drafts or "
            "none; rejection (token by token) and block (whole paths) give the same distribution."
        ),
    ] = "coupled",
    chat: ChatOrRaw = None,
    system: System = None,
    template_var: TemplateVar = None,
    stop: Annotated[list[str] | None, typer.Option(help="A text that ends the generation. Repeatable.")] = None,
    runtime: Runtime,
    check: Annotated[bool, typer.Option("--check", help="Decode without drafts too, and compare.")] = False,
    stats: Annotated[bool, typer.Option("--stats", help="Print what each level computed and proposed.")] = False,
    trace: Annotated[
        Path | None, typer.Option(help="Write rounds and levels for `inspect` into a .jsonl file.")
    ] = None,
    json_output: Json = False,
) -> None:
    """Decode: drafts guess, the target decides every token. Ctrl-C ends it with what there is.

    How tokens are chosen is as generation_config.json recommends, greedy without; options win.
    """
    from mxconv.cli.generate_results import trace_lines
    from mxconv.system.disk import check_output
    from mxconv.text.chat_templates import read_templates
    from mxconv.text.messages import given_prompts, text_of

    if prompt is not None and prompts is not None:
        raise typer.BadParameter("give either --prompt or --prompts")
    if prompt == "-" or (prompt is None and prompts is None):
        prompt = _standard_input()
    if batch is not None and prompts is None:
        raise typer.BadParameter("--batch needs --prompts")
    if kv_bytes is not None and batch is None:
        raise typer.BadParameter("--kv-bytes needs --batch")
    check_system(system, chat is not False)
    options: Options = {
        "max_new_tokens": max_new_tokens,
        **drafting.options,
        **sampling.given,
        "seed": sampling.seed,
        "accept": accept,
        "stop_strings": stop or [],
        "constraint": constraint.given,
    }
    if trace is not None:
        check_output(trace, None)
    streams = prompt is not None and not json_output
    with (
        runtime.load(package, drafting) as model,
        progress_bars("tokens" if prompt is not None else "prompts") as progress,
    ):
        has_template = system is not None or bool(read_templates(model.loaded.folder)[0])
        in_chat = has_template if chat is None else chat
        given = given_prompts(prompts, [] if prompt is None else [prompt], in_chat, system)
        model.template_variables = variables_of(template_var)
        in_use = model.sampling(options)
        is_drawn = in_use.selection().sampling is not None
        if check and accept != "coupled" and is_drawn:
            raise typer.BadParameter(f"--check compares tokens, and under --accept {accept} those differ")
        if in_use.is_from_file:
            Output(json_output=True).line(f"sampling: {in_use.summary}", "dim")
        target = model.loaded.levels[0].name
        decoded = DecodedPrompts(model, given, options, check, trace is not None, progress)
        if batch is not None:
            decoded.side_by_side(batch, kv_bytes)
        else:
            decoded.one_by_one(text_of(given[0]) + "\n" * in_chat if streams else None)  # an answer begins on its line
        lines: list[dict[str, Any]] = []
        for number, answer in enumerate(decoded.answers if trace is not None else []):
            ids, tokenizer = model.encode(answer.prompt), model.loaded.tokenizer
            lines += trace_lines(number, answer.generation, text_of(given[number]), ids, tokenizer)
    results = _results(decoded)
    members: dict[str, Any] = {"results": results, "target": target, "kv_dtype": runtime.kv_dtype}
    members |= {"sampling": in_use.members, **({"accept": accept} if is_drawn else {}), **_speeds(results, decoded)}
    out = Output(json_output)
    if trace is not None:
        out.write_text(trace, "".join(json.dumps(line) + "\n" for line in lines))
    print_results(members, out, not streams, stats)
    _tell_empty(decoded.answers, in_chat)
    out.json(members)
    _check_results(package, prompts, target, results)
    if decoded.interrupted:
        raise typer.Exit(INTERRUPTED)


def _results(decoded: DecodedPrompts) -> list[dict[str, Any]]:
    """The members of each text, compared with plain decoding as far as that came."""
    results = [result_of(each, answer) for each, answer in zip(decoded.prompts, decoded.answers, strict=False)]
    for result, answer, plain in zip(results, decoded.answers, decoded.plain, strict=False):
        if answer.generation.ending != "error":
            result["identical_to_target"] = (plain.token_ids, plain.text) == (answer.token_ids, answer.text)
        if decoded.seconds is None:  # else passes are shared
            result["speedup"] = plain.generation.seconds / answer.generation.seconds
            result["plain_tokens_per_second"] = plain.generation.decoding_tokens_per_second
    return results


def _speeds(results: list[dict[str, Any]], decoded: DecodedPrompts) -> dict[str, float]:
    """Members about all texts; where they share passes there is one speed, that of all."""
    if decoded.seconds is None:
        speedups = [result["speedup"] for result in results if "speedup" in result]
        return {"geomean_speedup": geometric_mean(speedups)} if speedups else {}
    if decoded.plain_seconds is None:
        return {"seconds": decoded.seconds}
    speedup = decoded.plain_seconds / decoded.seconds
    return {"seconds": decoded.seconds, "plain_seconds": decoded.plain_seconds, "geomean_speedup": speedup}


def _check_results(package: str, prompts: Path | None, target: str, results: list[dict[str, Any]]) -> None:
    """Raise ModelError where a text differs from plain decoding, or came to no end."""
    from mxconv.errors import ModelError

    if different := sum(not result.get("identical_to_target", True) for result in results):
        raise ModelError(
            f"{package}: {different} of {len(results)} texts differ from plain decoding of {target}; none may. "
            "Please report this as a defect."
        )
    if failed := [result["error"] for result in results if "error" in result]:
        raise ModelError(f"{prompts}: {len(failed)} of {len(results)} prompts came to no end; the first: {failed[0]}")


def _standard_input() -> str:
    """The prompt that is piped in, without its last line's end."""
    text = "" if sys.stdin is None or sys.stdin.isatty() else sys.stdin.read().rstrip("\r\n")
    if not text:
        raise typer.BadParameter("give either --prompt or --prompts, or pipe a prompt in")
    return text


def _tell_empty(answers: "Sequence[Answer]", in_chat: bool) -> None:
    """Say why an answer has no text, on stderr."""
    empty = [answer for answer in answers if not answer.text and answer.generation.token_ids]
    if not empty:
        return
    which = "the answer is" if len(answers) == 1 else f"{len(empty)} of {len(answers)} answers are"
    remedy = "Another prompt may help." if in_chat else "An instruct model needs its chat template, others more text."
    Output(json_output=True).line(f"{which} empty: the first token ended the text. {remedy}", "dim")
