"""Options that `generate` and `verify` have in common: which levels take part, and how tokens are chosen."""

from typing import Annotated, Any, Literal, cast

import typer

from mxconv.cli.completion import drafts, kernels, one_of

MOST_NODES = 63  # of a tree: with the context's last token, the rows of a pass

DRAFT = Annotated[
    list[str] | None,
    typer.Option(
        help="A further draft below the others, as for quantize: prompt-lookup, ngram:TABLE. Repeatable.",
        autocompletion=drafts,
    ),
]
LEVELS = Annotated[
    str | None,
    typer.Option(help="Comma-separated levels to use. The first, any model, is the target; by default all."),
]
NUM_DRAFT_TOKENS = Annotated[
    str | None,
    typer.Option(
        help="Draft tokens a round: one number, or one a draft level: 8,4; auto: what pays, measured.",
        autocompletion=one_of("auto"),
    ),
]
CONFIDENCE = Annotated[
    str | None,
    typer.Option(
        help="Stop drafting below this probability: one number, or one a draft level. Without it auto chooses."
    ),
]
TREE = Annotated[
    str,
    typer.Option(
        help="Trees of drafts: auto (what pays; chains where lengths are given), chain, or the most nodes.",
        autocompletion=one_of("auto", "chain"),
    ),
]
BATCH = Annotated[
    int | None,
    typer.Option(min=1, help="Prompts to decode side by side, each as if alone; one after another by default."),
]
KV_BYTES = Annotated[
    int | None,
    typer.Option(min=1, help="Bytes of keys and values of the prompts that run side by side; others wait."),
]
KERNEL = Annotated[
    str | None,
    typer.Option(
        help="Kernels to use: numpy or a native implementation. MXCONV_KERNEL sets a default.", autocompletion=kernels
    ),
]
THREADS = Annotated[int | None, typer.Option(min=1, help="Threads of native kernels; all processors by default.")]
KV_DTYPE = Annotated[
    Literal["fp32", "bf16", "fp16"],
    typer.Option(help="Keys and values in caches: fp32, or rounded to 16 bits; each is exact in itself."),
]
TEMPERATURE = Annotated[float | None, typer.Option(min=0, help="Randomness; 0 always takes the likeliest token.")]
TOP_K = Annotated[int | None, typer.Option(min=0, help="Draw from this many of the likeliest tokens; 0 from all.")]
TOP_P = Annotated[float | None, typer.Option(min=0, max=1, help="Draw from the likeliest tokens that have this share.")]
MIN_P = Annotated[
    float | None,
    typer.Option(min=0, max=1, help="Draw from tokens at least this many times as likely as the likeliest."),
]
REPETITION_PENALTY = Annotated[
    float | None, typer.Option(min=0.001, max=1000, help="Above 1: against tokens that prompt or answer have; 1: none.")
]
PRESENCE_PENALTY = Annotated[
    float | None, typer.Option(min=-2, max=2, help="Above 0: against tokens that the answer has; 0: none.")
]
FREQUENCY_PENALTY = Annotated[
    float | None, typer.Option(min=-2, max=2, help="Above 0: against them for every time that it has them; 0: none.")
]
LOGIT_BIAS = Annotated[
    list[str] | None, typer.Option(metavar="ID=BIAS", help="Add -100 to 100 to the logit of a token id. Repeatable.")
]
SEED = Annotated[int, typer.Option(min=0, max=2**64 - 1, help="Of random draws.")]
CHAT = Annotated[bool, typer.Option("--chat", help="Put prompts into the model's chat template.")]
SYSTEM = Annotated[str | None, typer.Option(help="With --chat: a system message before each prompt.")]
ACCEPT = Annotated[
    Literal["coupled", "rejection"],
    typer.Option(
        help="How drafts are verified when tokens are drawn: coupled gives the same tokens with any drafts or none, "
        "rejection the same distribution."
    ),
]


def draft_lengths(text: str | None) -> "list[int] | Literal['auto'] | None":
    """`--num-draft-tokens`: auto, or numbers."""
    return "auto" if text == "auto" else _numbers("--num-draft-tokens", text, int)


def tree_size(text: str) -> "int | Literal['auto', 'chain']":
    """`--tree`: auto, chain, or a number of nodes."""
    if text in ("auto", "chain"):
        return cast("Literal['auto', 'chain']", text)
    if not text.isdecimal() or not 1 <= int(text) <= MOST_NODES:
        raise typer.BadParameter(f"--tree: {text!r}; auto, chain or a number from 1 to {MOST_NODES} is required.")
    return int(text)


def thresholds(text: str | None) -> list[float] | None:
    """`--confidence`."""
    return _numbers("--confidence", text, float)


def check_system(system: str | None, chat: bool) -> None:
    """`--system`, which is a part of a chat."""
    if system is not None and not chat:
        raise typer.BadParameter("--system needs --chat")


def biases(texts: list[str] | None) -> dict[int, float] | None:
    """`--logit-bias`."""
    if texts is None:
        return None
    found: dict[int, float] = {}
    for text in texts:
        token, _, bias = text.partition("=")
        try:
            found[int(token)] = float(bias)
        except ValueError as error:
            raise typer.BadParameter(f"--logit-bias: {text!r}; ID=BIAS, two numbers, is required.") from error
    return found


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
