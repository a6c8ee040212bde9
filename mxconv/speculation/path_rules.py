"""What is held against tokens along the paths of one text: penalties, then a mask of what a constraint allows.

Every level applies it to its logits, by the tokens before each place, so that drafts propose what their target may say.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from mxconv.arrays import F32
from mxconv.engine.tree import Tree
from mxconv.speculation.path_mask import PathMask
from mxconv.speculation.path_penalties import PathPenalties
from mxconv.speculation.proposal import Proposal


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
            self.mask.go_to(context, path_of(proposal, node))
            kept.append(self.mask.is_inside)
        return proposal if all(kept) else proposal.where(kept)


@dataclass(frozen=True)
class _ProposalRows:
    """The rows of a verification, each changed when it is read."""

    rules: PathRules
    logits: F32
    context: Sequence[int]
    proposal: Proposal

    def __getitem__(self, row: int, /) -> F32:
        return self.rules.row(self.logits[row], self.context, path_of(self.proposal, row - 1))


def path_of(proposal: Proposal, node: int) -> list[int]:
    """The tokens from the context down to a node, its own included; none where it is -1."""
    tail: list[int] = []
    while node >= 0:
        tail.append(proposal.tokens[node])
        node = proposal.links[node]
    return tail[::-1]
