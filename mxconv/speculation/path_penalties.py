"""Penalties along the paths of one text: every level applies them to its logits, by the tokens before each place."""

from collections.abc import Sequence

import numpy as np

from mxconv.arrays import F32, I32, I64
from mxconv.engine.tree import TreePenalties
from mxconv.speculation.path_walk import PathWalk
from mxconv.text.penalties import Penalties, penalized

FIRST_PLACES = 64


class PathPenalties(PathWalk):
    """Counts of the tokens of a path."""

    def __init__(self, penalties: Penalties, num_prompt_tokens: int) -> None:
        super().__init__(num_prompt_tokens)
        self._penalties = penalties
        self._places: dict[int, int] = {}  # of tokens in the arrays
        self._tokens: I64 = np.zeros(FIRST_PLACES, np.int64)
        self._num_in_text: I32 = np.zeros(FIRST_PLACES, np.int32)
        self._num_in_answer: I32 = np.zeros(FIRST_PLACES, np.int32)

    def apply(self, logits: F32) -> F32:
        """The logits (vocab_size,) that choose the token after the path."""
        return penalized(logits, self._penalties, *self._counts)

    def after(self, context: Sequence[int]) -> TreePenalties:
        """The same for a tree below a context, which is grown before another path is taken."""
        self.go_to(context, ())
        return TreePenalties(self._penalties, *self._counts)

    @property
    def _counts(self) -> tuple[I64, I32, I32]:
        count = len(self._places)
        return self._tokens[:count], self._num_in_text[:count], self._num_in_answer[:count]

    def enter(self, token: int) -> None:
        place = self._places.setdefault(token, len(self._places))
        if place == len(self._tokens):
            self._tokens = np.concatenate([self._tokens, np.zeros_like(self._tokens)])
            self._num_in_text = np.concatenate([self._num_in_text, np.zeros_like(self._num_in_text)])
            self._num_in_answer = np.concatenate([self._num_in_answer, np.zeros_like(self._num_in_answer)])
        self._tokens[place] = token
        self._num_in_text[place] += 1
        self._num_in_answer[place] += len(self.path) >= self.num_prompt_tokens

    def leave(self, token: int) -> None:
        """The token keeps its place, with lower counts."""
        place = self._places[token]
        self._num_in_text[place] -= 1
        self._num_in_answer[place] -= len(self.path) >= self.num_prompt_tokens
