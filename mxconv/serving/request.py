"""What somebody wants decoded."""

from collections.abc import Collection
from dataclasses import dataclass

from mxconv.speculation.selection import GREEDY, Selection


@dataclass(frozen=True)
class Request:
    """A prompt, and how it is to go on.

    Args:
        prompt: token ids, at least one.
        max_new_tokens: at least one.
        stop_tokens: ids that end the text; the one that does is part of it.
        selection: how tokens are chosen.
    """

    prompt: list[int]
    max_new_tokens: int
    stop_tokens: Collection[int] = ()
    selection: Selection = GREEDY
