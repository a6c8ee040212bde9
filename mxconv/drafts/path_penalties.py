"""Penalties along the paths of one text: every level applies them to its logits, by the tokens before each place."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from mxconv.arrays import F32, I32, I64
from mxconv.drafts.proposal import Proposal
from mxconv.drafts.session import common_length
from mxconv.engine.tree import Tree
from mxconv.text.penalties import Penalties, penalized

FIRST_PLACES = 64


class Rows(Protocol):
    """Rows of logits, read one by one."""

    def __getitem__(self, row: int, /) -> F32: ...


class PathPenalties:
    """Counts of the tokens of a path, moved from path to path: a step costs what two paths differ by."""

    def __init__(self, penalties: Penalties, num_prompt_tokens: int) -> None:
        self._penalties = penalties
        self._num_prompt_tokens = num_prompt_tokens
        self._path: list[int] = []  # whose tokens are counted
        self._context: Sequence[int] = ()
        self._num_context = 0  # tokens of the context when it was last compared; contexts only grow
        self._places: dict[int, int] = {}  # of tokens in the arrays
        self._tokens: I64 = np.zeros(FIRST_PLACES, np.int64)
        self._num_in_text: I32 = np.zeros(FIRST_PLACES, np.int32)
        self._num_in_answer: I32 = np.zeros(FIRST_PLACES, np.int32)

    def row(self, logits: F32, context: Sequence[int], tail: Sequence[int] = ()) -> F32:
        """The logits (vocab_size,) that choose the token after a context and the tokens of a path after it."""
        self._go_to(context, tail)
        count = len(self._places)
        counts = self._tokens[:count], self._num_in_text[:count], self._num_in_answer[:count]
        return penalized(logits, self._penalties, *counts)

    def rows(self, logits: F32, context: Sequence[int], proposal: Proposal) -> Rows:
        """The rows of a verification, (len(proposal.tokens) + 1, vocab_size) in, penalized as far as they are read."""
        return _ProposalRows(self, logits, context, proposal)

    def passes(
        self, context: Sequence[int], first: F32, evaluate: Callable[[Sequence[int], Tree], F32]
    ) -> tuple[F32, Callable[[Sequence[int], Tree], F32]]:
        """The first logits and the passes from which a draft grows a tree, as `grow_by_passes` takes them."""
        tails: list[list[int]] = []  # of the rows

        def evaluated(tokens: Sequence[int], tree: Tree) -> F32:
            logits = evaluate(tokens, tree)
            del tails[tree.num_cached :]
            for token, parent in zip(tokens, tree.parents[tree.num_cached :], strict=True):
                tails.append([*(tails[parent] if parent >= 0 else ()), token])
            new = zip(logits, tails[tree.num_cached :], strict=True)
            return np.stack([self.row(row, context, tail) for row, tail in new])

        return self.row(first, context), evaluated

    def _go_to(self, context: Sequence[int], tail: Sequence[int]) -> None:
        """Count the tokens of another path."""
        if context is not self._context or len(context) != self._num_context:
            self._context, self._num_context = context, len(context)
            self._leave(common_length(self._path, context))
        num_context = self._num_context
        if len(self._path) < num_context:
            self._enter(context[len(self._path) :])
        self._leave(num_context + common_length(self._path[num_context:], tail))
        self._enter(tail[len(self._path) - num_context :])

    def _enter(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            place = self._places.setdefault(token, len(self._places))
            if place == len(self._tokens):
                self._tokens = np.concatenate([self._tokens, np.zeros_like(self._tokens)])
                self._num_in_text = np.concatenate([self._num_in_text, np.zeros_like(self._num_in_text)])
                self._num_in_answer = np.concatenate([self._num_in_answer, np.zeros_like(self._num_in_answer)])
            self._tokens[place] = token
            self._num_in_text[place] += 1
            self._num_in_answer[place] += len(self._path) >= self._num_prompt_tokens
            self._path.append(token)

    def _leave(self, length: int) -> None:
        """Go back to the first tokens of the path; the others keep their places, with lower counts."""
        while len(self._path) > length:
            place = self._places[self._path.pop()]
            self._num_in_text[place] -= 1
            self._num_in_answer[place] -= len(self._path) >= self._num_prompt_tokens


@dataclass(frozen=True)
class _ProposalRows:
    """The rows of a verification, each penalized when it is read."""

    penalties: PathPenalties
    logits: F32
    context: Sequence[int]
    proposal: Proposal

    def __getitem__(self, row: int, /) -> F32:
        tail: list[int] = []
        node = row - 1
        while node >= 0:
            tail.append(self.proposal.tokens[node])
            node = self.proposal.links[node]
        return self.penalties.row(self.logits[row], self.context, tail[::-1])
