"""Texts to decode where none are given, and texts as tokens."""

from collections.abc import Sequence
from pathlib import Path

from mxconv.errors import MxconvError
from mxconv.text.chat import encode_prompts
from mxconv.text.messages import Prompt
from mxconv.text.tokenizer import Tokenizer

DEFAULT_PROMPTS = (
    "The memory of a computer is",
    "Once upon a time there was a small village by the sea, and in it",
    "def read_lines(path):",
    "Question: why is the sky blue? Answer:",
)


def prompt_ids(tokenizer: Tokenizer, folder: Path, prompts: Sequence[Prompt]) -> list[list[int]]:
    """The prompts as tokens; messages as the chat template of the model in `folder` puts them.

    Raises:
        MxconvError: one of them has none, or the template refuses one.
    """
    ids = encode_prompts(tokenizer, folder, prompts)
    for text, tokens in zip(prompts, ids, strict=True):
        if not tokens:
            raise MxconvError(f"prompt {text!r}: no tokens; at least one is required. Leave it out.")
    return ids
