"""Where the nodes of a round's tree stand in a picture: columns are depths, and the text goes along the first row."""

from dataclasses import dataclass
from typing import Literal

from mxconv.report.run import Tree

OWN = -1  # in place of a node: the target's own token


@dataclass(frozen=True)
class Cell:
    """A token in the picture.

    Args:
        node: of the tree, or OWN.
        row: from 0.
        column: its depth, from 0.
        kind: a guess that stood, one that did not, or the target's own token.
        continues: into which kind of cell the line in its own row leads; None where it ends.
        is_first: of its siblings: its line comes straight from the left.
    """

    node: int
    row: int
    column: int
    kind: Literal["stood", "fell", "own"]
    continues: Literal["stood", "fell", "own"] | None
    is_first: bool


@dataclass(frozen=True)
class Fork:
    """A vertical line left of a column, from the first of several siblings down to the last."""

    column: int
    first_row: int
    last_row: int


@dataclass(frozen=True)
class Layout:
    cells: list[Cell]
    forks: list[Fork]
    num_rows: int


def lay_out(tree: Tree) -> Layout:
    """Of siblings the one that the text goes through comes first, the others as the draft had them, likelier first.

    A first child stands in its parent's row, every other one in a row of its own below all that hangs on those before.
    """
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(tree.parents):
        children.setdefault(parent, []).append(node)
    stood = set(tree.path[: tree.num_stood])
    last = tree.path[tree.num_stood - 1] if tree.num_stood else -1
    for siblings in children.values():
        siblings.sort(key=lambda node: node not in stood)  # stable
    if tree.own is not None:  # behind the last node that stood, and before those that fell there
        children[last] = [OWN, *children.get(last, [])]

    def kind(node: int) -> Literal["stood", "fell", "own"]:
        return "own" if node == OWN else "stood" if node in stood else "fell"

    cells: list[Cell] = []
    forks: list[Fork] = []
    num_rows = 0
    rows: dict[int, int] = {}
    # nodes still to be placed, the next one last; no recursion, since a chain may be deep
    todo = [(node, 0, index == 0, 0) for index, node in reversed(list(enumerate(children.get(-1, []))))]
    while todo:
        node, column, is_first, row = todo.pop()
        row = row if is_first and cells else num_rows
        num_rows = max(num_rows, row + 1)
        rows[node] = row
        behind = [] if node == OWN else children.get(node, [])
        cells.append(Cell(node, row, column, kind(node), kind(behind[0]) if behind else None, is_first))
        todo += [(child, column + 1, index == 0, row) for index, child in reversed(list(enumerate(behind)))]
    depth = {cell.node: cell.column for cell in cells}
    forks = [
        Fork(depth[siblings[0]], rows[siblings[0]], rows[siblings[-1]])
        for siblings in children.values()
        if len(siblings) > 1
    ]
    return Layout(cells, forks, num_rows)
