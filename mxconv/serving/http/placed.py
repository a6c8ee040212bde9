"""Tokens with their logprobs as clients see them: with texts, and where these stand."""

from collections.abc import Sequence
from dataclasses import dataclass

from mxconv.serving.http.job import Prompt
from mxconv.serving.http.logprobs import TokenLogprobs
from mxconv.text.text_stream import TextStream
from mxconv.text.token_label import token_label
from mxconv.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Label:
    """What a token looks like: its text, and its bytes where it is text or one byte."""

    text: str
    bytes: list[int] | None


@dataclass(frozen=True)
class PlacedLogprob:
    """A token with its logprob, and those of the likeliest tokens at its place; None of a text's first token."""

    label: Label
    logprob: float | None
    top: list[tuple[Label, float]] | None
    offset: int  # characters of the choice's text before it


def place(token: int, before: int | None, logprobs: TokenLogprobs, offset: int, tokenizer: Tokenizer) -> PlacedLogprob:
    """One token of a choice.

    Args:
        token: its id.
        before: the token before it.
        logprobs: its own, and of the likeliest.
        offset: characters before it.
        tokenizer: the target's.
    """
    top = [(_label(other, before, tokenizer), logprob) for other, logprob in logprobs.top]
    return PlacedLogprob(_label(token, before, tokenizer), logprobs.logprob, top, offset)


def place_prompt(prompt: Prompt, logprobs: Sequence[TokenLogprobs], tokenizer: Tokenizer) -> list[PlacedLogprob]:
    """All tokens of a prompt. The first has a label and no logprob: nothing foretells it.

    Args:
        prompt: with its text.
        logprobs: of all tokens but the first.
        tokenizer: the target's.
    """
    stream, length = TextStream(tokenizer), 0
    placed, before = [], None
    for token, found in zip(prompt.token_ids, (None, *logprobs), strict=True):
        offset = min(length, len(prompt.text))  # a special token may have a text that is not the prompt's
        if found is None:
            placed.append(PlacedLogprob(_label(token, None, tokenizer), None, None, offset))
        else:
            placed.append(place(token, before, found, offset, tokenizer))
        length += len(stream.feed(token))
        before = token
    return placed


def _label(token: int, before: int | None, tokenizer: Tokenizer) -> Label:
    text = token_label(tokenizer, before, token)
    if tokenizer.is_byte(token):
        return Label(text, [int(text[3:5], 16)])
    return Label(text, None if "\ufffd" in text else list(text.encode()))
