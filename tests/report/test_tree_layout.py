"""Layouts of random trees: nothing overlaps, columns are depths, and the text goes along the first row."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from mxconv.report.run import Tree
from mxconv.report.tree_layout import OWN, lay_out


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    parents = [draw(st.integers(-1, node - 1)) for node in range(draw(st.integers(0, 24)))]
    path: list[int] = []
    while behind := [node for node, parent in enumerate(parents) if parent == (path[-1] if path else -1)]:
        if draw(st.booleans()):
            break
        path.append(draw(st.sampled_from(behind)))
    emitted = [*path, 99][: draw(st.integers(0, len(path) + 1))]  # a node's token is its number
    return Tree("draft", list(range(len(parents))), parents, [], path, emitted, [], [])


@given(trees())
def test_every_token_has_a_place_of_its_own_at_its_depth(tree: Tree) -> None:
    layout = lay_out(tree)
    expected = [*tree.tokens, *([OWN] if tree.own is not None else [])]
    assert sorted(cell.node for cell in layout.cells) == sorted(expected)
    places = [(cell.row, cell.column) for cell in layout.cells]
    assert len(set(places)) == len(places)
    assert layout.num_rows == 1 + max((row for row, _ in places), default=-1)
    cells = {cell.node: cell for cell in layout.cells}
    for node, parent in enumerate(tree.parents):
        assert cells[node].column == (cells[parent].column + 1 if parent >= 0 else 0)
        assert cells[node].row >= (cells[parent].row if parent >= 0 else 0)
        assert cells[node].is_first == (cells[node].row == (cells[parent].row if parent >= 0 else 0))
    stood = set(tree.path[: tree.num_stood])
    assert {cell.node for cell in layout.cells if cell.kind == "stood"} == stood


@given(trees())
def test_the_text_goes_along_the_first_row(tree: Tree) -> None:
    first = sorted((cell for cell in lay_out(tree).cells if cell.row == 0), key=lambda cell: cell.column)
    tokens = [99 if cell.node == OWN else cell.node for cell in first]
    assert tokens[: len(tree.emitted)] == tree.emitted
    for cell, following in pairwise(first):
        assert cell.continues == following.kind


@given(trees())
def test_a_line_down_joins_siblings_and_crosses_nothing(tree: Tree) -> None:
    layout = lay_out(tree)
    later = [cell for cell in layout.cells if not cell.is_first]
    for cell in later:  # each hangs on exactly one
        forks = [f for f in layout.forks if f.column == cell.column and f.first_row < cell.row <= f.last_row]
        assert len(forks) == 1
    assert all(any(cell.column == f.column and cell.row == f.last_row for cell in later) for f in layout.forks)


def test_a_deep_chain_is_laid_out_without_recursion() -> None:
    parents = list(range(-1, 1023))
    tree = Tree("draft", [7] * 1024, parents, [], list(range(1024)), [7] * 1024, [], [])
    assert lay_out(tree).num_rows == 1
