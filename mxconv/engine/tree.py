"""Rows of a pass that continue one text in several ways: a tree of tokens below the end of what the cache holds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

import numpy as np

from mxconv.arrays import I32, I64, U64
from mxconv.errors import ModelError
from mxconv.text.distribution import Penalties, Sampling

MOST_ROWS = 64  # of a tree: a row's path is a word of 64 bits to the native pass
MOST_SIBLINGS, MOST_IN_FRONTIER = 8, 16  # of a tree of guesses: children of a node, rows of a pass


def depths_of(parents: Sequence[int]) -> list[int]:
    """How many nodes are above each node; parents come before children, and -1 is above all."""
    depths: list[int] = []
    for parent in parents:
        depths.append(0 if parent < 0 else depths[parent] + 1)
    return depths


@dataclass(frozen=True)
class Tree:
    """A tree of the rows of a pass.

    Raises:
        ModelError: no rows to evaluate, more than 64 that are no chain, or a parent that is not an earlier row.
    """

    parents: Sequence[int]  # of each row, an earlier row, or -1 for what lies before all of them
    num_cached: int = 0  # rows, the first ones, evaluated in passes before, which are the last that the cache holds

    def __post_init__(self) -> None:
        for row, parent in enumerate(self.parents):
            if not -1 <= parent < row:
                raise ModelError(
                    f"tree: the parent of row {row} is {parent}; an earlier row, or -1, is required. "
                    "Put parents before their children."
                )
        if not 0 <= self.num_cached < len(self.parents):
            cached = f" that the cache does not hold, of {len(self.parents)}" if self.parents else ""
            raise ModelError(f"tree: {self.num_rows} rows{cached}; at least one is required.")
        if len(self.parents) > MOST_ROWS and not self.is_chain:
            raise ModelError(f"tree: {len(self.parents)} rows; at most {MOST_ROWS} are evaluated in a pass. Cut it.")

    @classmethod
    def chain(cls, num_rows: int) -> "Tree":
        """Every row after the one before."""
        return cls(range(-1, num_rows - 1))

    @cached_property
    def num_rows(self) -> int:
        """To evaluate."""
        return len(self.parents) - self.num_cached

    @cached_property
    def is_chain(self) -> bool:
        return all(parent == row - 1 for row, parent in enumerate(self.parents))

    @cached_property
    def depths(self) -> list[int]:
        """For each row, how many rows of the tree precede it on its path."""
        return depths_of(self.parents)

    def path(self, row: int) -> list[int]:
        """The rows from the top down to this one, itself included."""
        rows = []
        while row >= 0:
            rows.append(row)
            row = self.parents[row]
        return rows[::-1]

    @cached_property
    def masks(self) -> U64:
        """(num_rows,) uint64: bit b of a row's mask says that row b is on its path."""
        masks: list[int] = []
        for row, parent in enumerate(self.parents):
            masks.append(1 << row | (masks[parent] if parent >= 0 else 0))
        return np.array(masks, np.uint64)


@dataclass(frozen=True)
class TreeDraws:
    """Tokens that are drawn as `CoupledAcceptance` draws them."""

    sampling: Sampling
    seed: int
    position: int  # of the first token after the context


@dataclass(frozen=True)
class TreePenalties:
    """What is held against the tokens of a tree, by those of the context; `penalized` says what the counts are."""

    penalties: Penalties
    tokens: I64
    num_in_text: I32
    num_in_answer: I32

    def by_place(self, known: I64) -> "TreePenalties":
        """The same of a head that knows these tokens alone, ascending ones, by their places among them."""
        places = np.searchsorted(known, self.tokens)
        is_known = np.isin(self.tokens, known)
        biases = (
            (int(np.searchsorted(known, token)), bias) for token, bias in self.penalties.logit_bias if token in known
        )
        return TreePenalties(
            replace(self.penalties, logit_bias=tuple(biases)),
            places[is_known],
            self.num_in_text[is_known],
            self.num_in_answer[is_known],
        )


@dataclass(frozen=True)
class TreeLimits:
    """The limits of a tree of a draft's likeliest tokens; a chain is a tree without siblings.

    Args:
        most_depth: tokens of a path.
        floors: ascending: the least chance of the likeliest node's path, of the second's, and so on. There are at most
            as many nodes. A chain ends after the token whose path falls below the next one's floor.
        least_own: a further pass pays below nodes one of which has this chance after its parent,
        least_sum: and whose paths have this one together; None for both leaves it at the draft's own confidence.
        sharpness: factor of the logits.
        most_siblings: children of a node.
        most_in_frontier: rows of a pass.
        most_rows: of all passes.
        draws: tokens that are drawn in place of the likeliest.
        penalties: held against tokens.
    """

    most_depth: int
    floors: Sequence[float]
    least_own: float | None = None
    least_sum: float | None = None
    sharpness: float = 1.0
    most_siblings: int = MOST_SIBLINGS
    most_in_frontier: int = MOST_IN_FRONTIER
    most_rows: int = MOST_ROWS
    draws: TreeDraws | None = None
    penalties: TreePenalties | None = None

    @classmethod
    def chain(cls, num_tokens: int, floor: float | None = None) -> "TreeLimits":
        """A chain, which ends after the token with which the product of its probabilities falls below a floor."""
        return cls(num_tokens, [0.0] * num_tokens, least_sum=floor, most_siblings=1)

    @property
    def is_chain(self) -> bool:
        return self.most_siblings == 1

    def of_draft(self, most_depth: int, confidence: float, sharpness: float) -> "TreeLimits":
        """The same for a draft that can propose so many tokens, with its own confidence where no floor is given.

        A chain's confidence is compared with probabilities, which so are not sharpened; its floor with sharpened ones.
        """
        depth, is_chain = min(self.most_depth, most_depth), self.is_chain
        return replace(
            self,
            most_depth=depth,
            floors=self.floors[: max(depth, 0)] if is_chain else self.floors,
            least_own=confidence if self.least_sum is None else -inf,
            least_sum=-inf if self.least_sum is None else self.least_sum,
            sharpness=1.0 if is_chain and self.least_sum is None else sharpness,
        )

    def go_on(self, chance: float, own_chance: float) -> bool:
        """Whether a pass pays below nodes whose paths have a chance together, and one its own chance."""
        assert self.least_own is not None and self.least_sum is not None, "limits of a draft"
        return own_chance >= self.least_own and chance >= self.least_sum


@dataclass(frozen=True)
class GrownTree:
    """A tree of a decoder's likeliest tokens."""

    tokens: list[int]  # of nodes, parents before children
    parents: list[int]  # nodes, or -1
    own_chances: list[float]  # of each after its parent
    chances: list[float]  # of their paths
    rows: list[int]  # the nodes that were evaluated, in the order of their rows after the context's
    first_of_last: int  # the row that the last pass began with
    num_passes: int  # that of the context included
