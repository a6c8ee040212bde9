"""A model's trees with what look-ups retrieve: laid over each other, told once, and never of another output."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from said_trees import Says, counts
from tiny_levels import VOCAB_SIZE, by_hand, decoder_of, look_up, noisy_copy, paths_of, speculate, target_level

from mxconv.drafts.proposal import Proposal, TreeDraft
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.merged import Retrieving
from mxconv.speculation.selection import GREEDY, Selection
from mxconv.text.distribution import Sampling

DRAFTED = Proposal([1, 2], probabilities=[0.9, 0.5], parents=[-1, 0])
RETRIEVED = Proposal([1, 5, 7], probabilities=[0.5, 0.4, 0.3], parents=[-1, 0, -1])


def test_a_drafted_tree_takes_in_what_is_retrieved() -> None:
    model, first, second = Says([4], DRAFTED), Says([8], RETRIEVED), Says([], Proposal([3], [], [0.1], [-1]))
    draft: TreeDraft = Retrieving(model, [first, second])
    assert draft.propose([0], 4).tokens == [4]
    tree = draft.grow([0], 4, [0.2] * 8)
    assert set(paths_of(tree)) == {(1,), (1, 2), (1, 5), (7,)}
    assert draft.statistics is model.statistics
    assert isinstance(draft, Retrieving)
    draft.count(4, tree, [1, 5, 0])
    assert [counts(each) for each in (model, first, second)] == [(4, 2, 1, 2), (4, 2, 2, 3), (4, 0, 0, 0)]


def test_a_tree_that_was_drawn_stays_as_it_was_drawn() -> None:
    shares = np.full(8, 1 / 8)
    drawn = Proposal([1, 2], [shares, shares], [0.5, 0.5], [-1, -1])
    model, look_up = Says([], drawn), Says([], RETRIEVED)
    draft = Retrieving(model, [look_up])
    assert draft.grow([0], 4, [0.0] * 8) == drawn
    draft.count(4, drawn, [2, 0])
    assert (counts(model), counts(look_up)) == ((4, 1, 1, 2), (4, 0, 0, 0))


def test_look_ups_are_told_by_the_level_that_asks_them_too() -> None:
    model, look_up = Says([]), Says([])
    Retrieving(model, [look_up]).observe([1], DRAFTED, np.zeros((3, 8), np.float32))
    assert (len(model.seen), len(look_up.seen)) == (1, 0)


@pytest.mark.parametrize("kinds", [("stand",), ("prompt-lookup", "token-recycling")])
def test_it_is_asked_in_hierarchies(kinds: Sequence[Literal["stand", "prompt-lookup", "token-recycling"]]) -> None:
    """A draft that is wrong here and there, and look-ups that fill the gaps."""
    hierarchy = Hierarchy([target_level(), noisy_copy(), *map(look_up, kinds)], "auto")
    names: set[str | None] = set()
    for _ in range(4):
        generation = hierarchy.begin()
        generation.trace.records_trees = True
        list(hierarchy.stream([1, 2, 3, 1, 2], 40, (), GREEDY, generation))
        names |= {entry.tree.draft for entry in generation.trace.entries if entry.tree is not None}
    assert " + ".join(["noisy", *kinds]) in names


@settings(max_examples=10, deadline=None)
@given(st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=12), st.integers(0, 2**64 - 1))
def test_the_targets_own_tokens_come_out(prompt: list[int], seed: int) -> None:
    levels = [target_level(), noisy_copy(), look_up("stand"), look_up("prompt-lookup")]
    hierarchy = Hierarchy(levels, "auto")
    for selection in (GREEDY, Selection(Sampling(0.7), "coupled", seed)):
        found, _ = speculate(hierarchy, prompt, 30, (), selection)
        assert found == by_hand(decoder_of(levels[0]), prompt, 30, (), selection)
    found, _ = speculate(hierarchy, prompt, 30, (), Selection(Sampling(0.7), "rejection", seed))
    again = by_hand(decoder_of(levels[0]), [*prompt, *found.token_ids[:-1]], 1)
    assert found.logits[-1] == again.logits[0]
