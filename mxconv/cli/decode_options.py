"""Options of the commands that decode, in groups: which levels draft, how tokens are chosen, and what computes them.

A command takes a group as one parameter and is made a command by `grouped`:

    @grouped
    def generate(package: ..., drafting: Drafting, sampling: Sampling, runtime: Runtime) -> None:
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast, get_type_hints

import typer

from mxconv.cli.completion import drafts, kernels, one_of

if TYPE_CHECKING:
    from mxconv.speculation.sampling_in_use import Asked
    from mxconv.speculation.text_model import Options, TextModel

MOST_NODES = 63  # of a tree: with the context's last token, the rows of a pass

Kernel = Annotated[
    str | None,
    typer.Option(
        help="Kernels to use: numpy or a native implementation. MXCONV_KERNEL sets a default.", autocompletion=kernels
    ),
]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads of native kernels; all processors by default.")]
KvDtype = Annotated[
    Literal["fp32", "bf16", "fp16"],
    typer.Option(help="Keys and values in caches: fp32, or rounded to 16 bits; each is exact in itself."),
]
Levels = Annotated[
    str | None,
    typer.Option(help="Comma-separated levels to use. The first, any model, is the target; by default all."),
]
Draft = Annotated[
    list[str] | None,
    typer.Option(
        help="A further draft below the others, as for quantize: prompt-lookup, ngram:TABLE. Repeatable.",
        autocompletion=drafts,
    ),
]
TreeSize = Annotated[
    str,
    typer.Option(
        help="Trees of drafts: auto (what pays; chains where lengths are given), chain, or the most nodes.",
        autocompletion=one_of("auto", "chain"),
    ),
]
Batch = Annotated[
    int | None,
    typer.Option(min=1, help="Prompts to decode side by side, each as if alone; one after another by default."),
]
Chat = Annotated[bool, typer.Option("--chat", help="Put prompts into the model's chat template.")]
System = Annotated[str | None, typer.Option(help="With --chat: a system message before each prompt.")]


@dataclass(frozen=True)
class Drafting:
    """Which levels take part, and how much they draft."""

    levels: Levels = None
    draft: Draft = None
    num_draft_tokens: Annotated[
        str | None,
        typer.Option(
            help="Draft tokens a round: one number, or one a draft level: 8,4; auto: what pays, measured.",
            autocompletion=one_of("auto"),
        ),
    ] = None
    confidence: Annotated[
        str | None,
        typer.Option(
            help="Stop drafting below this probability: one number, or one a draft level. Without it auto chooses."
        ),
    ] = None
    tree: TreeSize = "auto"

    @property
    def lengths(self) -> "list[int] | Literal['auto'] | None":
        """The value of `--num-draft-tokens`: auto, or numbers."""
        text = self.num_draft_tokens
        return "auto" if text == "auto" else _numbers("--num-draft-tokens", text, int)

    @property
    def thresholds(self) -> list[float] | None:
        """The numbers of `--confidence`."""
        return _numbers("--confidence", self.confidence, float)

    @property
    def options(self) -> "Options":
        """The options of `TextModel` that say how much is drafted."""
        return {"num_draft_tokens": self.lengths, "confidence": self.thresholds, "tree": tree_size(self.tree)}


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen. What is not given is as the model recommends."""

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
        float | None,
        typer.Option(min=0.001, max=1000, help="Above 1: against tokens that prompt or answer have; 1: none."),
    ] = None
    presence_penalty: Annotated[
        float | None, typer.Option(min=-2, max=2, help="Above 0: against tokens that the answer has; 0: none.")
    ] = None
    frequency_penalty: Annotated[
        float | None,
        typer.Option(min=-2, max=2, help="Above 0: against them for every time that it has them; 0: none."),
    ] = None
    logit_bias: Annotated[
        list[str] | None,
        typer.Option(metavar="ID=BIAS", help="Add -100 to 100 to the logit of a token id. Repeatable."),
    ] = None
    seed: Annotated[int, typer.Option(min=0, max=2**64 - 1, help="Of random draws.")] = 0

    @property
    def asked(self) -> "Asked":
        """What was asked for, by its name in `Options`; the seed is not part of it."""
        names = (field.name for field in fields(self) if field.name not in ("logit_bias", "seed"))
        asked: dict[str, Any] = {name: getattr(self, name) for name in names} | {"logit_bias": self._biases()}
        return cast("Asked", asked)

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
class Runtime:
    """The kernels and threads that compute, and what caches keep."""

    kernel: Kernel = None
    threads: Threads = None
    kv_dtype: KvDtype = "fp32"

    def load(self, package: str, drafting: Drafting) -> "TextModel":
        """Open a package with the levels and further drafts that were asked for."""
        from mxconv.speculation.text_model import load

        names = level_names(drafting.levels)
        return load(package, drafting.draft or (), self.kernel, self.threads, names, self.kv_dtype)


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the fields of its option groups as parameters of their own, which is what typer reads.

    Every parameter becomes a keyword; a group, a dataclass, is made of its fields when the command is called.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters: list[inspect.Parameter] = []

    def add(name: str, default: Any, annotation: Any) -> None:
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter(name, kind, default=default, annotation=annotation))

    for parameter in inspect.signature(command).parameters.values():
        if (group := groups.get(parameter.name)) is None:
            add(parameter.name, parameter.default, hints[parameter.name])
            continue
        for field, hint in get_type_hints(group, include_extras=True).items():
            add(field, getattr(group, field), hint)

    @wraps(command)
    def flat(**given: Any) -> None:
        made = {
            name: group(**{f.name: given.pop(f.name, f.default) for f in fields(group)})
            for name, group in groups.items()
        }
        command(**given, **made)

    flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    flat.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return flat


def tree_size(text: str) -> "int | Literal['auto', 'chain']":
    """`--tree`: auto, chain, or a number of nodes."""
    if text in ("auto", "chain"):
        return cast("Literal['auto', 'chain']", text)
    if not text.isdecimal() or not 1 <= int(text) <= MOST_NODES:
        raise typer.BadParameter(f"--tree: {text!r}; auto, chain or a number from 1 to {MOST_NODES} is required.")
    return int(text)


def check_system(system: str | None, chat: bool) -> None:
    """`--system`, which is a part of a chat."""
    if system is not None and not chat:
        raise typer.BadParameter("--system needs --chat")


def level_names(text: str | None) -> list[str] | None:
    """`--levels`."""
    return None if text is None else [name.strip() for name in text.split(",")]


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
