"""Logprobs of tokens: from the target's logits, and as OpenAI's clients see them, with texts and bytes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mxconv.arrays import F32
from mxconv.engine.decoder import Decoder
from mxconv.text.text_stream import token_label
from mxconv.text.tokenizer import Tokenizer

LEAST = -9999.0  # OpenAI's number for what cannot be; JSON has no infinity
MOST_PROMPT_ROWS = 32  # of a prompt that are evaluated at once, while running sequences wait


@dataclass(frozen=True)
class TokenLogprobs:
    """Logprobs at one place of a text.

    Args:
        logprob: of the token that was chosen.
        top: the likeliest tokens and theirs, likeliest first, the lowest ids among equals.
    """

    logprob: float
    top: list[tuple[int, float]]


def token_logprobs(logits: F32, token: int, num_top: int) -> TokenLogprobs:
    """Logarithms of the softmax of the target's own logits: before temperature, top_k and top_p.

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


def prompt_logprobs(decoder: Decoder, tokens: Sequence[int], num_top: int) -> Iterator[list[TokenLogprobs]]:
    """Yield the logprobs of all tokens of a prompt but the first, those of some rows at a time.

    The prompt is evaluated in a cache of its own. Rows depend on their path alone: the logits are those that would have
    chosen these tokens, bit for bit.
    """
    cache, last = decoder.new_cache(), len(tokens) - 1
    for begin in range(0, last, MOST_PROMPT_ROWS):
        end = min(begin + MOST_PROMPT_ROWS, last)
        logits = decoder.forward(tokens[begin:end], cache)
        following = tokens[begin + 1 : end + 1]
        yield [token_logprobs(row, token, num_top) for row, token in zip(logits, following, strict=True)]


def logprob_entry(token: int, before: int | None, found: TokenLogprobs | None, tokenizer: Tokenizer) -> dict[str, Any]:
    """OpenAI's object of a token: `token`, `logprob`, `bytes` and `top_logprobs`.

    Args:
        token: its id.
        before: the token before it; None at the beginning of a text.
        found: its logprobs; None of a text's first token, since nothing predicts it.
        tokenizer: the target's.
    """
    if found is None:
        return _labelled(token, before, None, tokenizer) | {"top_logprobs": None}
    top = [_labelled(other, before, logprob, tokenizer) for other, logprob in found.top]
    return _labelled(token, before, found.logprob, tokenizer) | {"top_logprobs": top}


def _labelled(token: int, before: int | None, logprob: float | None, tokenizer: Tokenizer) -> dict[str, Any]:
    """A token's text, its logprob, and its bytes: of all tokens of a text together they are the text."""
    text = token_label(tokenizer, before, token)
    raw = tokenizer.bytes_of(token)
    if raw is None and "\ufffd" not in text:
        raw = text.encode()
    return {"token": text, "logprob": logprob, "bytes": None if raw is None else list(raw)}
