"""Trees grown best first: against every tree there is, by draft, and decoded with bit for bit."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ngram_tables import write_table
from plug_ins import RECYCLING, STAND, plug_in_module
from tiny_levels import (
    VOCAB_SIZE,
    assert_lossless,
    by_hand,
    decoder_of,
    look_up,
    noisy_copy,
    paths_of,
    self_draft,
    speculate,
    target_level,
)

from mxconv.drafts.ngram import NgramDraft
from mxconv.drafts.prompt_lookup import PromptLookup
from mxconv.engine.tree import TreeLimits
from mxconv.package.ngram_table import read_ngram_table
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.loaded_level import LoadedLevel
from mxconv.speculation.proposal import Proposal
from mxconv.speculation.selection import GREEDY, Selection
from mxconv.speculation.statistics import LevelStatistics
from mxconv.speculation.trees import grow_best_first
from mxconv.text.distribution import Sampling

SELECTIONS = (GREEDY, Selection(Sampling(0.8, top_p=0.95), "coupled", 7))
ALL = [0.0] * 12


@given(st.integers(0, 2**32), st.integers(0, 3), st.integers(0, 10), st.sampled_from([0.0, 0.05, 0.3]))
def test_the_nodes_are_the_likeliest_of_all_paths(seed: int, most_depth: int, count: int, floor: float) -> None:
    table = np.random.default_rng(seed).dirichlet(np.ones(4), size=4)

    def continuations(last: int) -> Iterator[tuple[int, float, int]]:
        for token in range(4):
            yield token, float(table[last, token]), token

    def chance(path: Sequence[int]) -> float:
        return float(np.prod([table[last, token] for last, token in zip((0, *path), path, strict=False)]))

    found = grow_best_first(0, continuations, TreeLimits(most_depth, [floor] * count))
    every = [path for depth in range(1, most_depth + 1) for path in product(range(4), repeat=depth)]
    expected = sorted((chance(path) for path in every), reverse=True)[:count]
    assert found.chances == pytest.approx([value for value in expected if value >= floor])
    paths = paths_of(found)
    assert len(set(paths)) == len(paths)
    assert [chance(path) for path in paths] == pytest.approx(found.chances)


def test_floors_that_rise_end_the_tree_at_the_first_node_that_is_not_worth_its_place() -> None:
    def continuations(last: int) -> Iterator[tuple[int, float, int]]:
        yield from ((1, 0.6, 1), (2, 0.3, 2), (3, 0.1, 3))

    assert grow_best_first(0, continuations, TreeLimits(9, [0.0, 0.2, 0.31, 0.5])).chances == pytest.approx([0.6, 0.36])
    assert grow_best_first(0, continuations, TreeLimits(9, [])).tokens == []
    assert grow_best_first(0, continuations, TreeLimits(0, ALL)).tokens == []


def test_recycled_candidates_of_every_token_make_the_tree() -> None:
    draft = plug_in_module(RECYCLING).TokenRecycling(LevelStatistics("draft"), 4, 2, confidence=0.9)
    draft.observe([0], Proposal([1]), np.log(np.array([[0.1, 0.6, 0.3, 0.001], [0.7, 0.1, 0.1, 0.1]], np.float32)))
    found = draft.propose([3, 0], TreeLimits(3, ALL))
    assert paths_of(found)[:6] == [(1,), (1, 0), (2,), (1, 0, 1), (1, 0, 2), (1, 1)]
    assert draft.propose([3], TreeLimits(3, ALL)).tokens == []  # nothing was seen after 3


def test_a_look_up_says_what_followed_n_grams_of_every_length() -> None:
    draft = PromptLookup(LevelStatistics("prompt-lookup"))
    context = [1, 2, 3, 8, 2, 3, 9, 3, 7, 1, 2, 3]
    found = draft.propose(context, TreeLimits(2, ALL))
    assert [path for path in paths_of(found) if len(path) == 1] == [(8,), (9,), (7,)]
    assert {path for path in paths_of(found) if len(path) == 2} == {(8, 2), (9, 3), (7, 1)}
    assert draft.propose(context, TreeLimits.chain(2)).tokens == [8, 2]
    assert draft.propose([4, 5], TreeLimits(2, ALL)).tokens == []


def test_places_that_say_the_same_are_one_branch() -> None:
    draft = PromptLookup(LevelStatistics("prompt-lookup"))
    assert paths_of(draft.propose([1, 2, 5, 6, 1, 2, 5, 7, 1, 2], TreeLimits(2, ALL))) == [(5,), (5, 7)]


def test_a_table_gives_the_tokens_of_shorter_contexts_too(tmp_path: Path) -> None:
    table = read_ngram_table(write_table(tmp_path / "table", "0" * 64))
    draft = NgramDraft(LevelStatistics("ngram"), table, 0.0)
    generator = random.Random(3)
    for _ in range(50):
        context = [generator.randrange(96) for _ in range(3)]
        found = draft.propose(context, TreeLimits(1, ALL))
        said = [table.best(context[-length:] if length else [])[0] for length in (2, 1, 0)]
        assert {path[0] for path in paths_of(found)} == set(said)
        assert sum(found.probabilities) <= 1 + 1e-6


def looks_up(kind: str, tmp_path: Path) -> LoadedLevel:
    if kind != "ngram":
        return look_up(kind)  # type: ignore[arg-type]
    level = look_up("ngram")
    table = read_ngram_table(write_table(tmp_path / "table", "0" * 64, vocab_size=VOCAB_SIZE))
    return replace(level, table=table)


@pytest.mark.parametrize(
    ("kind", "tree"),
    [
        (RECYCLING, 63),
        (RECYCLING, "auto"),
        ("prompt-lookup", 3),
        ("prompt-lookup", "chain"),
        ("ngram", 16),
        ("ngram", "auto"),
        (STAND, 16),
        (STAND, "chain"),
        (STAND, "auto"),
    ],
)
def test_any_tree_gives_the_targets_tokens_and_logits(kind: str, tree: int | str, tmp_path: Path) -> None:
    last = looks_up(kind, tmp_path)
    lengths = "auto" if isinstance(tree, str) else [6]
    hierarchies = [target_level(), last], [target_level(), self_draft(), last], [target_level(), noisy_copy(), last]
    for turn, levels in enumerate(hierarchies):
        hierarchy = Hierarchy(levels, lengths, [0.0], tree)  # type: ignore[arg-type]
        for prompt in ([1, 2, 3, 1, 2, 3, 1, 2], [5]):
            selection = SELECTIONS[(turn + len(prompt)) % 2]
            found, generation = speculate(hierarchy, prompt, 30, (), selection)
            assert found == by_hand(decoder_of(levels[0]), prompt, 30, (), selection)
        if isinstance(tree, int) and kind in (RECYCLING, STAND) and tree > 3:
            statistics = generation.trace.statistics[-1]
            assert statistics.num_nodes > statistics.num_proposed  # trees, not chains


def test_a_tree_behind_a_prompt_that_is_new_fits_into_a_pass(tmp_path: Path) -> None:
    """A draft may be asked first where its model has not read the prompt: 64 rows are all there are."""
    levels = [target_level(max_position_embeddings=120), noisy_copy(max_position_embeddings=120)]
    hierarchy = Hierarchy([*levels, look_up(RECYCLING)], [8], [0.0], 60)
    assert_lossless(hierarchy, [index % VOCAB_SIZE for index in range(90)], 20)
