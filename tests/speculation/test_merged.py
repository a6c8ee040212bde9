"""Trees laid over each other against sets of paths, and several look-ups as one draft."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ngram_tables import write_table
from tiny_levels import (
    VOCAB_SIZE,
    by_hand,
    decoder_of,
    look_up,
    noisy_copy,
    paths_of,
    self_draft,
    speculate,
    target_level,
)

from mxconv.package.ngram_table import read_ngram_table
from mxconv.speculation.generation import Generation
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.loaded_level import LoadedLevel
from mxconv.speculation.merged import Merged, merge
from mxconv.speculation.proposal import Draft, Proposal, TreeDraft
from mxconv.speculation.selection import GREEDY, Selection
from mxconv.speculation.statistics import LevelStatistics
from mxconv.speculation.trees import grow_best_first
from mxconv.text.distribution import Sampling

SELECTIONS = (GREEDY, Selection(Sampling(0.8, top_p=0.95), "coupled", 7))


class Says:
    """A draft that always says the same."""

    def __init__(self, chain: list[int], tree: Proposal | None = None) -> None:
        self.statistics = LevelStatistics("says")
        self.chain, self.tree = chain, tree or Proposal([], parents=[])
        self.seen: list[Proposal] = []

    def propose(self, context: Sequence[int], num_tokens: int, floor: float | None = None) -> Proposal:
        return Proposal(self.chain[:num_tokens])

    def grow(
        self, context: Sequence[int], most_depth: int, floors: Sequence[float], floor: float | None = None
    ) -> Proposal:
        return self.tree

    def observe(self, context: Sequence[int], proposal: Proposal, logits: np.ndarray) -> None:
        self.seen.append(proposal)


def counts(draft: Says) -> tuple[int, int, int, int]:
    of = draft.statistics
    return of.num_asked, of.num_proposed, of.num_accepted, of.num_nodes


@st.composite
def trees(draw: st.DrawFn) -> Proposal:
    """As a draft grows it out of a random table: up to ten nodes of four tokens."""
    table = np.random.default_rng(draw(st.integers(0, 2**32))).dirichlet(np.ones(4), size=5)
    most_depth, count = draw(st.integers(0, 4)), draw(st.integers(0, 10))

    def continuations(last: int) -> list[tuple[int, float, int]]:
        return [(token, float(table[last, token]), token) for token in range(4)]

    return grow_best_first(4, continuations, most_depth, [0.0] * count)


def surest(proposals: Sequence[Proposal]) -> dict[tuple[int, ...], float]:
    """Every path of any tree, with the product of the highest probabilities that its nodes have anywhere."""
    highest: dict[tuple[int, ...], float] = {}
    for proposal in proposals:
        for path, probability in zip(paths_of(proposal), proposal.probabilities, strict=True):
            highest[path] = max(highest.get(path, 0.0), probability)
    return {path: float(np.prod([highest[path[:n]] for n in range(1, len(path) + 1)])) for path in highest}


@given(st.lists(trees(), min_size=1, max_size=4))
def test_without_floors_the_union_of_all_paths_remains(proposals: list[Proposal]) -> None:
    found = merge(proposals, [0.0] * 40)
    expected = surest(proposals)
    paths = paths_of(found)
    assert len(paths) == len(set(paths))  # so siblings differ
    assert set(paths) == set(expected)
    assert found.chances == pytest.approx([expected[path] for path in paths])
    assert found.chances == sorted(found.chances, reverse=True)
    assert found.distributions == []


@given(st.lists(trees(), max_size=3), st.lists(st.floats(0, 0.5), max_size=12).map(sorted))
def test_floors_leave_the_likeliest(proposals: list[Proposal], floors: list[float]) -> None:
    found = merge(proposals, floors)
    falling = sorted(surest(proposals).values(), reverse=True)
    enough = [chance >= floor for chance, floor in zip(falling, floors, strict=False)]
    count = next((place for place, is_enough in enumerate(enough) if not is_enough), len(enough))
    assert found.chances == pytest.approx(falling[:count])
    assert set(paths_of(found)) <= set(surest(proposals))


def test_a_chain_is_that_of_the_first_who_has_something_to_say() -> None:
    silent, first, second = Says([]), Says([3, 4]), Says([5])
    draft: Draft = Merged([silent, first, second])
    assert isinstance(draft, TreeDraft)
    assert draft.propose([1], 1).tokens == [3]
    assert draft.statistics is first.statistics
    assert Merged([silent, Says([])]).propose([1], 4).tokens == []
    draft.observe([1], Proposal([3]), np.zeros((2, 4), np.float32))
    assert [len(each.seen) for each in (silent, first, second)] == [1, 1, 1]


def test_a_tree_counts_for_each_with_the_nodes_that_it_said() -> None:
    one = Says([], Proposal([1, 2, 3], probabilities=[0.9, 0.9, 0.1], parents=[-1, 0, 1]))
    other = Says([], Proposal([1, 5, 7], probabilities=[0.5, 0.4, 0.3], parents=[-1, 0, -1]))
    silent = Says([])
    draft = Merged([one, other, silent])
    tree = draft.grow([0], 4, [0.2] * 8)
    assert set(paths_of(tree)) == {(1,), (1, 2), (1, 5), (7,)}  # the third token is too improbable
    draft.count(4, tree, [1, 5, 0])
    assert (counts(one), counts(other), counts(silent)) == ((4, 2, 1, 2), (4, 2, 2, 3), (4, 0, 0, 0))
    draft.count(4, tree.with_tokens_below(7), [])  # 7 was not judged
    assert (counts(one), counts(other), counts(silent)) == ((8, 4, 1, 4), (8, 4, 2, 5), (8, 0, 0, 0))


# in hierarchies

KINDS = ("stand", "token-recycling", "prompt-lookup", "ngram")
PROMPTS = ([1, 2, 3, 1, 2, 3, 1, 2], [5])


def looks_up(kinds: Sequence[str], folder: Path) -> list[LoadedLevel]:
    levels = [look_up(kind) for kind in kinds]  # type: ignore[arg-type]
    if "ngram" in kinds:
        table = read_ngram_table(write_table(folder / "table", "0" * 64, vocab_size=VOCAB_SIZE))
        place = kinds.index("ngram")
        levels[place] = replace(levels[place], table=table)
    return levels


def assert_truthful(generation: Generation, is_tree: bool) -> None:
    """A round's tokens are its own one and those that stood: one look-up's, who said all of them."""
    names = [level.name for level in generation.trace.statistics]
    entries = generation.trace.entries
    num_accepted = 0
    for start in range(0, len(entries), len(names)):
        each = entries[start + 1 : start + len(names)]
        accepted = [entry.num_accepted for entry in each]
        num_accepted += max(accepted) if is_tree else sum(accepted)
        assert is_tree or sum(entry.num_proposed > 0 for entry in each) <= 1
        assert all(0 <= entry.num_accepted <= entry.num_proposed <= entry.num_asked for entry in each)
    assert generation.trace.num_rounds + num_accepted == len(generation.token_ids)
    assert num_accepted > 0 or "ngram" in names  # a table in which this text is not


@pytest.mark.parametrize("tree", ["chain", 16, "auto"])
@pytest.mark.parametrize("kinds", [KINDS[1:3], ("ngram", "token-recycling"), KINDS])
def test_any_look_ups_together_give_the_targets_tokens_and_logits(
    kinds: Sequence[str], tree: int | Literal["auto", "chain"], tmp_path: Path
) -> None:
    for models in ([target_level()], [target_level(), self_draft()], [target_level(), noisy_copy(), self_draft()]):
        lengths: Literal["auto"] | list[int] = "auto" if tree == "auto" else [6]
        hierarchy = Hierarchy([*models, *looks_up(kinds, tmp_path)], lengths, [0.0], tree)
        for number, prompt in enumerate(PROMPTS[: 1 + (len(models) == 1)]):
            selection = SELECTIONS[(number + len(models) + 1) % 2]
            found, generation = speculate(hierarchy, prompt, 30, (), selection)
            assert found == by_hand(decoder_of(models[0]), prompt, 30, (), selection)
            if len(models) == 1 and tree != "auto" and selection is GREEDY:
                assert_truthful(generation, tree == 16)


@settings(max_examples=8, deadline=None)
@given(
    st.lists(st.sampled_from(KINDS[:3]), min_size=2, max_size=4, unique=False),
    st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=12),
    st.sampled_from(["chain", 2, 9, 63]),
    st.integers(0, 2**64 - 1),
)
def test_any_run_of_look_ups_changes_nothing(kinds: list[str], prompt: list[int], tree: int | str, seed: int) -> None:
    levels = [target_level(), *(look_up(kind) for kind in kinds)]  # type: ignore[arg-type]
    hierarchy = Hierarchy(levels, [5], [0.1], tree)  # type: ignore[arg-type]
    for selection in (GREEDY, Selection(Sampling(0.7), "coupled", seed)):
        found, _ = speculate(hierarchy, prompt, 20, (), selection)
        assert found == by_hand(decoder_of(levels[0]), prompt, 20, (), selection)
