"""The order in which a pass goes through the rows of one sequence: a stretch that all share, then branches."""

from collections.abc import Sequence
from dataclasses import dataclass

from mxconv.engine.tree import Tree


@dataclass(frozen=True)
class Walk:
    """From a state that is kept to the state behind each new row. Places count the rows of the cache from 0 on.

    Args:
        source: the slot of the state to start from; `TIP` is the running state itself.
        first: how many places that state has seen.
        stop: the rows first .. stop - 1 are walked one after another, by the running state.
        length: rows from here on are new, those before are in the cache.
        saves: (place, slot): a copy of the running state that has seen so many places goes there.
        branches: (row, parent) behind `stop`, parents before children, each on a state of its own; a parent that is
            `stop - 1` is the running state. Rows of earlier passes are among them where new ones hang below.
    """

    source: int
    first: int
    stop: int
    length: int
    saves: tuple[tuple[int, int], ...] = ()
    branches: tuple[tuple[int, int], ...] = ()


def shared_rows(tree: Tree) -> int:
    """How many rows, from the first on, are a chain that every new row ends or hangs below."""
    if tree.is_chain:
        return len(tree.parents)
    masks = [int(mask) for mask in tree.masks]
    count = 0
    while tree.parents[count] == count - 1 and all(
        masks[row] >> count & 1 for row in range(max(count, tree.num_cached), len(masks))
    ):
        count += 1
    return count


def branches(tree: Tree, num_shared: int, start: int) -> tuple[tuple[int, int], ...]:
    """The rows behind the shared ones that lead to new ones, with their parents, as places.

    Args:
        tree: of the pass.
        num_shared: rows that lead to all others.
        start: the place of the tree's first row.
    """
    needed: set[int] = set()
    for row in range(max(tree.num_cached, num_shared), len(tree.parents)):
        needed.update(above for above in tree.path(row) if above >= num_shared)
    return tuple((start + row, start + tree.parents[row]) for row in sorted(needed))


def num_children(pairs: Sequence[tuple[int, int]]) -> dict[int, int]:
    """Of each parent among (row, parent): of how many rows it is one."""
    counts: dict[int, int] = {}
    for _, parent in pairs:
        counts[parent] = counts.get(parent, 0) + 1
    return counts
