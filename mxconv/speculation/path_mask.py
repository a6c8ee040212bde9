"""The tokens that a constraint allows along the paths of one text."""

from collections import OrderedDict
from typing import Protocol

import numpy as np

from mxconv.arrays import F32, Bool
from mxconv.speculation.path_walk import PathWalk

MOST_MASKS = 64  # that are kept: those of a tree


class Matcher(Protocol):
    """How far a text has come in what a constraint describes."""

    def consume(self, token: int) -> bool:
        """Go on by a token; False, and nothing has changed, where it is not allowed."""
        ...

    def rollback(self, num_tokens: int) -> None:
        """Take the last tokens back."""
        ...

    def mask(self, vocab_size: int) -> Bool:
        """(vocab_size,): the tokens that may come next; where the text may end, those that end it."""
        ...

    def forced(self) -> list[int]:
        """The tokens that certainly come next, in the way that the tokenizer writes them."""
        ...


class PathMask(PathWalk):
    """Masks logits; a path that has left the constraint, or its text has ended, is masked no more.

    Args:
        matcher: at the beginning of an answer.
        ends: tokens that end a text.
        num_prompt_tokens: as `PathWalk` has it.
    """

    def __init__(self, matcher: Matcher, ends: frozenset[int], num_prompt_tokens: int) -> None:
        super().__init__(num_prompt_tokens)
        self._matcher = matcher
        self._ends = ends
        self._num_consumed = 0
        self._masks: OrderedDict[tuple[int, ...], Bool] = OrderedDict()

    @property
    def is_inside(self) -> bool:
        """Whether the constraint allows the path's tokens, up to one that ends the text."""
        return self._is_followed or self._has_ended

    @property
    def _answer(self) -> list[int]:
        return self.path[self.num_prompt_tokens :]

    @property
    def _is_followed(self) -> bool:
        """Whether the matcher has consumed all tokens of the answer."""
        return self._num_consumed == max(len(self.path) - self.num_prompt_tokens, 0)

    @property
    def _has_ended(self) -> bool:
        """Whether the first token that was not consumed ends the text where it may end."""
        answer = self._answer
        at = self._num_consumed
        if at >= len(answer) or answer[at] not in self._ends:
            return False
        return bool(self._mask(tuple(answer[:at]), answer[at] + 1)[answer[at]])

    def apply(self, logits: F32) -> F32:
        """The logits (vocab_size,), minus infinity where the constraint does not allow a token."""
        if not self._is_followed:
            return logits
        return np.where(self._mask(tuple(self._answer), len(logits)), logits, np.float32(-np.inf))

    def forced(self) -> list[int]:
        """The tokens that certainly come after the path."""
        return self._matcher.forced() if self._is_followed else []

    def _mask(self, answer: tuple[int, ...], vocab_size: int) -> Bool:
        found = self._masks.get(answer)
        if found is None or len(found) < vocab_size:
            self._masks[answer] = found = self._matcher.mask(vocab_size)
            while len(self._masks) > MOST_MASKS:
                self._masks.popitem(last=False)
        return found[:vocab_size]

    def enter(self, token: int) -> None:
        if len(self.path) < self.num_prompt_tokens or not self._is_followed or token in self._ends:
            return
        self._num_consumed += self._matcher.consume(token)

    def leave(self, token: int) -> None:
        if self._num_consumed > max(len(self.path) - self.num_prompt_tokens, 0):
            self._matcher.rollback(1)
            self._num_consumed -= 1
