"""Trees laid over each other against sets of paths; a plug-in that merges look-ups decodes what the target does."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plug_ins import PAPERS, plug_in_module
from tiny_levels import assert_lossless, look_up, paths_of, target_level

from mxconv.engine.tree import TreeLimits
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.proposal import Proposal
from mxconv.speculation.selection import GREEDY, Selection
from mxconv.speculation.trees import grow_best_first
from mxconv.text.distribution import Sampling

MERGED = f"{PAPERS / 'rasd.py'}:MergedKind"


@st.composite
def trees(draw: st.DrawFn) -> Proposal:
    """As a draft grows it out of a random table: up to ten nodes of four tokens."""
    table = np.random.default_rng(draw(st.integers(0, 2**32))).dirichlet(np.ones(4), size=5)
    most_depth, count = draw(st.integers(0, 4)), draw(st.integers(0, 10))

    def continuations(last: int) -> list[tuple[int, float, int]]:
        return [(token, float(table[last, token]), token) for token in range(4)]

    return grow_best_first(4, continuations, TreeLimits(most_depth, [0.0] * count))


def surest(proposals: Sequence[Proposal]) -> dict[tuple[int, ...], float]:
    """Every path of any tree, with the product of the highest probabilities that its nodes have anywhere."""
    highest: dict[tuple[int, ...], float] = {}
    for proposal in proposals:
        for path, probability in zip(paths_of(proposal), proposal.probabilities, strict=True):
            highest[path] = max(highest.get(path, 0.0), probability)
    return {path: float(np.prod([highest[path[:n]] for n in range(1, len(path) + 1)])) for path in highest}


@given(st.lists(trees(), max_size=3), st.lists(st.floats(0, 0.5), max_size=12).map(sorted))
def test_floors_leave_the_likeliest_paths_of_the_union(proposals: list[Proposal], floors: list[float]) -> None:
    look_up(MERGED)
    found = plug_in_module(MERGED).merge(proposals, TreeLimits(99, floors))
    falling = sorted(surest(proposals).values(), reverse=True)
    enough = [chance >= floor for chance, floor in zip(falling, floors, strict=False)]
    count = next((place for place, is_enough in enumerate(enough) if not is_enough), len(enough))
    assert found.chances == pytest.approx(falling[:count])
    assert set(paths_of(found)) <= set(surest(proposals)) and len(set(paths_of(found))) == count


@pytest.mark.parametrize("selection", [GREEDY, Selection(Sampling(0.8, top_p=0.95), "coupled", 7)])
@pytest.mark.parametrize("tree", [16, "chain"])
def test_merged_trees_change_nothing(selection: Selection, tree: int | str) -> None:
    hierarchy = Hierarchy([target_level(), look_up(MERGED)], [4], [0.0], tree)  # type: ignore[arg-type]
    trace = assert_lossless(hierarchy, [3, 1, 4, 1, 5], 40, (), selection).trace
    assert trace.statistics[1].num_accepted > 0
