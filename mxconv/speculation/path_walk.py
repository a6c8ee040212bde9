"""The path of a text down to some place below it, followed from place to place."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from mxconv.speculation.session import common_length


class PathWalk(ABC):
    """Knows the tokens of a path and moves to others: a step costs what two paths differ by.

    Args:
        num_prompt_tokens: how many tokens of each path nobody chose.
    """

    def __init__(self, num_prompt_tokens: int) -> None:
        self.num_prompt_tokens = num_prompt_tokens
        self.path: list[int] = []
        self._context: Sequence[int] = ()
        self._num_context = 0  # tokens of the context when it was last compared; contexts only grow

    def go_to(self, context: Sequence[int], tail: Sequence[int]) -> None:
        """Take the path of a context and the tokens of a tail after it."""
        if context is not self._context or len(context) != self._num_context:
            self._context, self._num_context = context, len(context)
            self._leave(common_length(self.path, context))
        num_context = self._num_context
        if len(self.path) < num_context:
            self._enter(context[len(self.path) :])
        self._leave(num_context + common_length(self.path[num_context:], tail))
        self._enter(tail[len(self.path) - num_context :])

    def _enter(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self.enter(token)
            self.path.append(token)

    def _leave(self, length: int) -> None:
        while len(self.path) > length:
            self.leave(self.path.pop())

    @abstractmethod
    def enter(self, token: int) -> None:
        """Go one token further, after `path`."""

    @abstractmethod
    def leave(self, token: int) -> None:
        """Go one token back, to `path`."""
