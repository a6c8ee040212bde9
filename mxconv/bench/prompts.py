"""Texts to decode where none are given, and texts as tokens."""

from collections.abc import Sequence

from mxconv.errors import MxconvError
from mxconv.model.tokenizer import Tokenizer

DEFAULT_PROMPTS = (
    "The memory of a computer is",
    "Once upon a time there was a small village by the sea, and in it",
    "def read_lines(path):",
    "Question: why is the sky blue? Answer:",
)


def prompt_ids(tokenizer: Tokenizer, prompts: Sequence[str]) -> list[list[int]]:
    """The prompts as tokens.

    Raises:
        MxconvError: one of them has none.
    """
    ids = [tokenizer.encode(text) for text in prompts]
    for text, tokens in zip(prompts, ids, strict=True):
        if not tokens:
            raise MxconvError(f"prompt {text!r}: no tokens; at least one is required. Leave it out.")
    return ids
