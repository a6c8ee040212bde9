"""Logprobs of tokens: from the target's logits, and as clients see them, with texts and offsets."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mxconv.arrays import F32
from mxconv.text.text_stream import TextStream, token_label
from mxconv.text.tokenizer import Tokenizer

LEAST = -9999.0  # OpenAI's number for what cannot be; JSON has no infinity


@dataclass(frozen=True)
class TokenLogprobs:
    """Logprobs at one place of a text.

    Args:
        logprob: of the token that was chosen.
        top: the likeliest tokens and theirs, likeliest first, the lowest ids among equals.
    """

    logprob: float
    top: list[tuple[int, float]]


@dataclass(frozen=True)
class PlacedToken:
    """A token as clients see it.

    Args:
        entry: OpenAI's `token`, `logprob`, `bytes` and `top_logprobs`; the last two numbers are None of a text's first
            token.
        offset: characters of the choice's text before it.
    """

    entry: dict[str, Any]
    offset: int


def token_logprobs(logits: F32, token: int, num_top: int) -> TokenLogprobs:
    """Logarithms of the softmax of the target's own logits: before temperature, top_k and top_p.

    A function of the row alone, like the row of its path.

    Args:
        logits: (vocab_size,) float32.
        token: the chosen one.
        num_top: how many of the likeliest to name.
    """
    exponents = logits.astype(np.float64) - np.float64(logits.max())
    with np.errstate(under="ignore"):
        logprobs = exponents - np.log(np.exp(exponents).sum())
    top: list[tuple[int, float]] = []
    if num_top:
        least = np.partition(logits, -num_top)[-num_top] if num_top < logits.size else logits.min()
        likely = np.flatnonzero(logits >= least)
        likely = likely[np.argsort(-logits[likely], kind="stable")][:num_top]
        top = [(int(one), max(LEAST, float(logprobs[one]))) for one in likely]
    return TokenLogprobs(max(LEAST, float(logprobs[token])), top)


def place(
    token: int, before: int | None, logprobs: TokenLogprobs | None, offset: int, tokenizer: Tokenizer
) -> PlacedToken:
    """One token of a choice, after the token `before` it."""
    if logprobs is None:
        return PlacedToken(_labelled(token, before, None, tokenizer) | {"top_logprobs": None}, offset)
    top = [_labelled(other, before, logprob, tokenizer) for other, logprob in logprobs.top]
    return PlacedToken(_labelled(token, before, logprobs.logprob, tokenizer) | {"top_logprobs": top}, offset)


def place_prompt(
    token_ids: Sequence[int], text: str, logprobs: Sequence[TokenLogprobs], tokenizer: Tokenizer
) -> list[PlacedToken]:
    """All tokens of a prompt; the first has no logprob, since nothing predicts it.

    Args:
        token_ids: of the prompt.
        text: its own.
        logprobs: of all tokens but the first.
        tokenizer: the target's.
    """
    stream, length = TextStream(tokenizer), 0
    placed, before = [], None
    for token, found in zip(token_ids, (None, *logprobs), strict=True):
        # a special token may have a text that is not the prompt's
        placed.append(place(token, before, found, min(length, len(text)), tokenizer))
        length += len(stream.feed(token))
        before = token
    return placed


def _labelled(token: int, before: int | None, logprob: float | None, tokenizer: Tokenizer) -> dict[str, Any]:
    """A token's text, its logprob, and its bytes where it is text or one byte."""
    text = token_label(tokenizer, before, token)
    raw = [int(text[3:5], 16)] if tokenizer.is_byte(token) else None if "\ufffd" in text else list(text.encode())
    return {"token": text, "logprob": logprob, "bytes": raw}
