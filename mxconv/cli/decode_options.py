"""Groups of options of the commands that decode: prompts, which levels draft, how tokens are chosen, what computes."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from mxconv.cli.common_options import Kernel, MaxNewTokens, Threads, numbers_of, offered_drafts, one_of, parse_bytes
from mxconv.cli.converted import package_of

if TYPE_CHECKING:
    from mxconv.cli.output import Output
    from mxconv.decode import Options, TextModel
    from mxconv.engine.placement import MemoryLimit, MemoryPlan
    from mxconv.speculation.selection import RequestedSampling
    from mxconv.text.constraint import Constraint
    from mxconv.text.messages import Prompt

MOST_NODES = 63  # of a tree: with the context's last token, the rows of a pass

Batch = Annotated[
    int | None,
    typer.Option(min=1, help="Prompts to decode side by side, each as if alone; one after another by default."),
]
Chat = Annotated[bool, typer.Option("--chat", help="Put prompts into the model's chat template.")]
ChatOrRaw = Annotated[
    bool | None,
    typer.Option(
        "--chat/--raw", help="Use the model's chat template, as by default where it has one, or the bare text."
    ),
]
System = Annotated[str | None, typer.Option(help="A system message before each prompt, in the chat template.")]

TemplateVar = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE", help="A variable of the chat template, such as enable_thinking=false. Repeatable."
    ),
]


def parse_memory(text: str) -> "MemoryLimit":
    """The value of `--memory`: auto, or a number of bytes."""
    return "auto" if text == "auto" else parse_bytes(text)


def names_of(levels: str | None) -> list[str] | None:
    """The names in the value of `--levels`."""
    return None if levels is None else [name.strip() for name in levels.split(",")]


Levels = Annotated[
    str | None,
    typer.Option(help="Levels to use, joined by commas; the first, any model, is the target. All by default."),
]
Memory = Annotated[
    Any,
    typer.Option(
        help="Most memory to take, such as 12GB, or auto; what does not fit is read from the disk in each pass.",
        parser=parse_memory,
        metavar="SIZE",
    ),
]


@dataclass(frozen=True)
class PromptOptions:
    """The prompts of a benchmark."""

    prompts: Annotated[
        Path | None, typer.Option(help="A .jsonl file of prompts (`prompt`, `messages`); a few by default.")
    ] = None
    chat: Chat = False
    system: System = None
    max_new_tokens: MaxNewTokens = 64

    def read(self, default: Sequence[str]) -> "list[Prompt]":
        """The prompts of the file, or the default ones."""
        from mxconv.text.messages import given_prompts

        check_system(self.system, self.chat)
        return given_prompts(self.prompts, default, self.chat, self.system)


@dataclass(frozen=True)
class LevelOptions:
    """The levels that take part."""

    levels: Levels = None
    draft: Annotated[
        list[str] | None,
        typer.Option(
            help="A further draft below the others, as in quantize: prompt-lookup, ngram:TABLE. Repeatable.",
            autocompletion=offered_drafts,
        ),
    ] = None
    tree: Annotated[
        str,
        typer.Option(
            help="Shape of drafts: auto (the fastest; chains where lengths are given), chain, or the most nodes.",
            autocompletion=one_of("auto", "chain"),
        ),
    ] = "auto"

    @property
    def names(self) -> list[str] | None:
        """The names in `--levels`."""
        return names_of(self.levels)

    @property
    def tree_size(self) -> "int | Literal['auto', 'chain']":
        """The value of `--tree`: auto, chain, or a number of nodes."""
        if self.tree in ("auto", "chain"):
            return cast("Literal['auto', 'chain']", self.tree)
        if not self.tree.isdecimal() or not 1 <= int(self.tree) <= MOST_NODES:
            raise typer.BadParameter(
                f"--tree: {self.tree!r}; auto, chain or a number from 1 to {MOST_NODES} is required."
            )
        return int(self.tree)


@dataclass(frozen=True)
class Drafting(LevelOptions):
    """The levels that take part, and how much they draft."""

    num_draft_tokens: Annotated[
        str | None,
        typer.Option(
            help="Draft tokens in each round: one number, or one for each draft level (8,4), or auto, the fastest.",
            autocompletion=one_of("auto"),
        ),
    ] = None
    confidence: Annotated[
        str | None,
        typer.Option(
            help="Probability below which drafting stops: one number, or one for each draft level; chosen by default."
        ),
    ] = None

    @property
    def lengths(self) -> "list[int] | Literal['auto'] | None":
        """The value of `--num-draft-tokens`: auto, or numbers."""
        text = self.num_draft_tokens
        if text is None or text == "auto":
            return cast("Literal['auto'] | None", text)
        return numbers_of("--num-draft-tokens", text, int, 1, 64)

    @property
    def thresholds(self) -> list[float] | None:
        """The numbers of `--confidence`."""
        return None if self.confidence is None else numbers_of("--confidence", self.confidence, float, 0, 1)

    @property
    def options(self) -> "Options":
        """The options of `TextModel` that say how much is drafted."""
        return {"num_draft_tokens": self.lengths, "confidence": self.thresholds, "tree": self.tree_size}


@dataclass(frozen=True)
class SamplingOptions:
    """Options of sampling. What is not given is as the model recommends."""

    temperature: Annotated[
        float | None, typer.Option(min=0, help="Randomness; 0 always takes the likeliest token.")
    ] = None
    top_k: Annotated[
        int | None, typer.Option(min=0, help="Draw from this many of the likeliest tokens; 0 from all.")
    ] = None
    top_p: Annotated[
        float | None, typer.Option(min=0, max=1, help="Draw from the likeliest tokens that have this share.")
    ] = None
    min_p: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Draw from tokens at least this many times as likely as the likeliest."),
    ] = None
    repetition_penalty: Annotated[
        float | None, typer.Option(min=0.001, max=1000, help="Penalty on tokens of prompt and answer; 1 is none.")
    ] = None
    presence_penalty: Annotated[
        float | None, typer.Option(min=-2, max=2, help="Penalty on tokens that the answer has; 0 is none.")
    ] = None
    frequency_penalty: Annotated[
        float | None,
        typer.Option(min=-2, max=2, help="Penalty on tokens for each time that the answer has them; 0 is none."),
    ] = None
    logit_bias: Annotated[
        list[str] | None, typer.Option(metavar="ID=BIAS", help="Number to add to the logit of a token id. Repeatable.")
    ] = None
    seed: Annotated[int, typer.Option(min=0, max=2**64 - 1, help="Seed of random draws.")] = 0

    @property
    def given(self) -> "RequestedSampling":
        """The options that were given, by their names in `Options`; the seed is not part of them."""
        names = (field.name for field in fields(self) if field.name not in ("logit_bias", "seed"))
        given: dict[str, Any] = {name: getattr(self, name) for name in names} | {"logit_bias": self._biases()}
        return cast("RequestedSampling", given)

    def _biases(self) -> dict[int, float] | None:
        if self.logit_bias is None:
            return None
        found: dict[int, float] = {}
        for text in self.logit_bias:
            token, _, bias = text.partition("=")
            try:
                found[int(token)] = float(bias)
            except ValueError as error:
                raise typer.BadParameter(f"--logit-bias: {text!r}; ID=BIAS, two numbers, is required.") from error
        return found


@dataclass(frozen=True)
class ConstraintOptions:
    """Constraints of an answer."""

    json_schema: Annotated[Path | None, typer.Option(help="A file with a JSON Schema that the answer fits.")] = None
    regex: Annotated[str | None, typer.Option(help="A regular expression that the whole answer must match.")] = None
    grammar: Annotated[Path | None, typer.Option(help="A file with the grammar of the answer, in GBNF or Lark.")] = None

    @property
    def given(self) -> "Constraint | None":
        """The constraint; None where there is none."""
        from mxconv.text.constraint import Constraint, read_constraint

        found: list[Constraint] = []
        if self.json_schema is not None:
            found.append(read_constraint("json_schema", self.json_schema))
        if self.regex is not None:
            found.append(Constraint("regex", self.regex))
        if self.grammar is not None:
            found.append(read_constraint("grammar", self.grammar))
        if len(found) > 1:
            raise typer.BadParameter("give one of --json-schema, --regex and --grammar")
        return found[0] if found else None


@dataclass(frozen=True)
class Computing:
    """The kernels and threads that compute, and what caches keep."""

    kernel: Kernel = None
    threads: Threads = None
    kv_dtype: Annotated[Literal["fp32", "bf16", "fp16"], typer.Option(help="Type of keys and values in caches.")] = (
        "fp32"
    )
    weights: Annotated[
        Literal["auto", "map", "copy"],
        typer.Option(help="Place of weights: mapped files (map), large pages (copy), or by memory (auto)."),
    ] = "auto"


@dataclass(frozen=True)
class Runtime(Computing):
    """The same, and how much memory they take."""

    memory: Memory = None

    def load(self, package: str, drafting: Drafting, share: float = 1.0) -> "TextModel":
        """Open a package, or that of a model, with the levels and further drafts that were named.

        `share` is of `--memory`: what this package and those that are loaded already may take of it.
        """
        from mxconv.decode import load
        from mxconv.engine.placement import memory_limit

        found, names = package_of(package), drafting.names
        memory = None if self.memory is None else int(memory_limit(self.memory) * share)
        return load(found, drafting.draft or (), self.kernel, self.threads, names, self.kv_dtype, self.weights, memory)


def planned(
    package: "str | Path", levels: str | None, memory: "MemoryLimit", out: "Output"
) -> "tuple[MemoryPlan, float]":
    """Print what a run keeps in memory and reads; return it with the bytes a second that its disk gives, now measured.

    Raises:
        ModelError: `memory` is too small.
    """
    from mxconv.drafts.loader import LoadedPackage
    from mxconv.package.package_folder import find_package
    from mxconv.report.tables import format_bytes

    with LoadedPackage(find_package(str(package)), names_of(levels), memory=memory, plans_only=True) as loaded:
        assert loaded.placement is not None, "of a limit"
        plan, rate = loaded.placement.plan, loaded.placement.measured_rate()
    names = {"codes, scales and drafts": plan.resident, "cache": plan.cache, "the program": plan.program}
    out.line(f"in memory: {', '.join(f'{format_bytes(value)} of {name}' for name, value in names.items())}")
    found = f"the target's planes: {format_bytes(plan.kept)} in memory, {format_bytes(plan.read)} read in each round"
    out.line(found + (f", and of {format_bytes(plan.experts)} those of chosen experts" if plan.experts else ""))
    if plan.read_by(1):
        rounds = (f"{n * rate / plan.read_by(n):.3g} in rounds of {n}" for n in (4, 8, 16))
        found = f"{rate / plan.read_by(1):.3g} tokens a second without drafts, {', '.join(rounds)}"
        out.line(f"this disk gives {rate / 1e9:.2f} GB/s (measured now): at most {found}")
    return plan, rate


def variables_of(given: list[str] | None) -> dict[str, Any]:
    """The variables of `--template-var`: JSON values where they are such, and texts."""
    found: dict[str, Any] = {}
    for text in given or ():
        name, is_set, value = text.partition("=")
        if not name or not is_set:
            raise typer.BadParameter(f"--template-var: {text!r}; NAME=VALUE is required.")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def check_system(system: str | None, chat: bool) -> None:
    """Refuse `--system` without `--chat`, of which it is a part."""
    if system is not None and not chat:
        raise typer.BadParameter("--system needs --chat")
