"""What is held against tokens along the paths of one text: penalties, then a mask of what a constraint allows.

Every level applies it to its logits, by the tokens before each place, so that drafts propose what their target may
choose.
"""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from mxconv.arrays import F32, I32, I64, Bool
from mxconv.engine.tree import Tree, TreePenalties
from mxconv.speculation.proposal import Proposal
from mxconv.speculation.session import common_length
from mxconv.text.distribution import Penalties, penalized

if TYPE_CHECKING:
    from mxconv.text.constraint import GrammarMatcher

MOST_MASKS = 64  # that are kept: those of a tree
FIRST_PLACES = 64  # of counted tokens


class PathWalk(ABC):
    """Knows the tokens of a path and moves to others: a step costs what two paths differ by.

    Args:
        num_prompt_tokens: how many tokens of each path are the prompt.
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


class PathMask(PathWalk):
    """Masks logits; a path that has left the constraint, or its text has ended, is masked no more.

    Args:
        matcher: at the beginning of an answer.
        ends: tokens that end a text.
        num_prompt_tokens: as `PathWalk` has it.
    """

    def __init__(self, matcher: "GrammarMatcher", ends: frozenset[int], num_prompt_tokens: int) -> None:
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


class Rows(Protocol):
    """Rows of logits, read one by one."""

    def __getitem__(self, row: int, /) -> F32: ...


@dataclass(frozen=True, eq=False)
class PathRules:
    """The rules of a run."""

    penalties: PathPenalties | None = None
    mask: PathMask | None = None

    def row(self, logits: F32, context: Sequence[int], tail: Sequence[int] = ()) -> F32:
        """The logits (vocab_size,) that choose the token after a context and the tokens of a path after it."""
        for rule in (self.penalties, self.mask):
            if rule is not None:
                rule.go_to(context, tail)
                logits = rule.apply(logits)
        return logits

    def rows(self, logits: F32, context: Sequence[int], proposal: Proposal) -> Rows:
        """The rows of a verification, (len(proposal.tokens) + 1, vocab_size) in, changed as far as they are read."""
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

    def forced(self, context: Sequence[int], most: int) -> list[int]:
        """The tokens that a constraint leaves no choice but to write after a context, at most so many."""
        if self.mask is None or most < 1:
            return []
        self.mask.go_to(context, ())
        return self.mask.forced()[:most]

    def allowed(self, context: Sequence[int], proposal: Proposal) -> Proposal:
        """A proposal without what the constraint rules out.

        What was drawn at random stays: whether a token is judged must not depend on which one it is.
        """
        if self.mask is None or proposal.distributions:
            return proposal
        kept = []
        for node in range(len(proposal.tokens)):
            self.mask.go_to(context, proposal.path(node))
            kept.append(self.mask.is_inside)
        return proposal.where(kept)


@dataclass(frozen=True)
class _ProposalRows:
    """The rows of a verification, each changed when it is read."""

    rules: PathRules
    logits: F32
    context: Sequence[int]
    proposal: Proposal

    def __getitem__(self, row: int, /) -> F32:
        return self.rules.row(self.logits[row], self.context, self.proposal.path(row - 1))
