"""Trees of guesses: the likeliest nodes there are, best first, by frontiers or as runners-up; and drawn ones."""

import random
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from chi_square import FALSE_ALARM, tail_of_counts
from hypothesis import given
from hypothesis import strategies as st
from markov_levels import markov, pairs_of, tables
from ngram_tables import write_table
from plug_ins import RECYCLING, plug_in_module
from tiny_levels import (
    MAX_POSITIONS,
    VOCAB_SIZE,
    assert_lossless,
    decoder_of,
    level_over,
    look_up,
    noisy_copy,
    paths_of,
    self_draft,
    target_level,
)

from mxconv.arrays import F32
from mxconv.drafts.ngram import NgramDraft
from mxconv.drafts.prompt_lookup import PromptLookup
from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.engine.tree import TreeLimits
from mxconv.package.ngram_table import read_ngram_table
from mxconv.speculation.acceptance import Acceptance, CoupledAcceptance, GreedyAcceptance, RejectionAcceptance
from mxconv.speculation.block_verification import BlockAcceptance
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.model_draft import ModelDraft
from mxconv.speculation.proposal import SHARPNESS, Proposal, Sharpness
from mxconv.speculation.statistics import LevelStatistics
from mxconv.speculation.trees import grow_best_first
from mxconv.text.distribution import Sampling, distribution

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


def test_a_tree_behind_a_prompt_that_is_new_fits_into_a_pass(tmp_path: Path) -> None:
    """A draft may be asked first where its model has not read the prompt: 64 rows are all there are."""
    levels = [target_level(max_position_embeddings=120), noisy_copy(max_position_embeddings=120)]
    hierarchy = Hierarchy([*levels, look_up(RECYCLING)], [8], [0.0], 60)
    assert_lossless(hierarchy, [index % VOCAB_SIZE for index in range(90)], 20)


CONTEXT = [3, 1, 4, 1, 5, 9]
SAMPLING = Sampling(0.9, top_p=0.98)
RULES: list[Acceptance] = [GreedyAcceptance(), CoupledAcceptance(SAMPLING, 11)]
Tokens = tuple[int, ...]


def drafting_level(
    acceptance: Acceptance, decoder: Decoder, draft: ModelDraft | None = None, confidence: float = 0.0
) -> ModelDraft:
    return ModelDraft(level_over(decoder, draft, acceptance), confidence, Sharpness())


def chances_of(proposal: Proposal) -> dict[Tokens, float]:
    """The chance of every node's path."""
    paths = paths_of(proposal)
    assert len(set(paths)) == len(paths)
    return dict(zip(paths, proposal.chances, strict=True))


def logits_behind(decoder: Decoder, path: Tokens) -> F32:
    return decoder.forward([*CONTEXT, *path], KVCache(decoder.config))[-1]


def likeliest(rule: Acceptance, decoder: Decoder, most_depth: int, floors: Sequence[float]) -> dict[Tokens, float]:
    """The same tree, every node evaluated alone in a pass over its whole text."""

    def continuations(path: Tokens) -> Iterator[tuple[int, float, Tokens]]:
        said = rule.guesses(logits_behind(decoder, path), len(CONTEXT) + len(path), 0.0, 8, SHARPNESS)
        for token, chance in zip(said.tokens, said.chances, strict=True):
            yield token, chance, (*path, token)

    return chances_of(grow_best_first((), continuations, TreeLimits(most_depth, floors)))


@pytest.mark.parametrize("rule", RULES, ids=["greedy", "coupled"])
@pytest.mark.parametrize(
    ("most_depth", "floors"),
    [(1, [0.0] * 5), (3, [0.0] * 12), (6, [0.0] * 4), (9, [0.05] * 30), (4, [0.0, 0.1, 0.15, 0.2, 0.3]), (3, [1.0])],
)
def test_a_frontier_a_pass_finds_the_likeliest_tree_there_is(
    rule: Acceptance, most_depth: int, floors: list[float]
) -> None:
    decoder = decoder_of(target_level())
    drafting = drafting_level(rule, decoder)
    found = chances_of(drafting.propose(CONTEXT, TreeLimits(most_depth, floors, least_sum=0.0)))
    assert found == pytest.approx(likeliest(rule, decoder, most_depth, floors))
    depth = max(map(len, found), default=0)
    assert drafting.statistics.num_forwards <= max(min(depth + 1, most_depth), 1)  # none for what cannot be kept


@pytest.mark.parametrize("rule", RULES, ids=["greedy", "coupled"])
def test_a_draft_goes_on_behind_any_context_after_a_tree(rule: Acceptance) -> None:
    decoder = decoder_of(target_level())
    drafting, fresh = drafting_level(rule, decoder), drafting_level(rule, decoder)
    said = fresh.propose(CONTEXT, TreeLimits.chain(3)).tokens
    tree = drafting.propose(CONTEXT, TreeLimits(4, [0.0] * 20, least_sum=0.0))
    assert drafting.level.session.tokens[: len(CONTEXT)] == CONTEXT
    num_kept = len(drafting.level.session.tokens) - len(CONTEXT)
    assert tuple(drafting.level.session.tokens[len(CONTEXT) :]) in {path[:num_kept] for path in chances_of(tree)}
    for context in ([*CONTEXT, *said], [*CONTEXT, 0, 7], CONTEXT[:4]):
        again = drafting_level(rule, decoder)
        assert drafting.propose(context, TreeLimits.chain(4)) == again.propose(context, TreeLimits.chain(4))
        assert chances_of(drafting.propose(context, TreeLimits(3, [0.0] * 9, least_sum=0.0))) == chances_of(
            again.propose(context, TreeLimits(3, [0.0] * 9, least_sum=0.0))
        )


def test_a_tree_leaves_a_shared_cache_as_it_was_found() -> None:
    decoder = decoder_of(target_level())
    owner = level_over(decoder)
    owner.round(CONTEXT, 1)
    before = owner.session.tokens[:], [array[:, :, : len(CONTEXT)].copy() for array in owner.session.cache.arrays]
    draft = ModelDraft(level_over(decoder_of(self_draft()), shared=owner.session), 0.0, Sharpness())
    draft.propose([*CONTEXT, 2], TreeLimits(4, [0.0] * 20, least_sum=0.0))
    assert owner.session.tokens == before[0]
    assert owner.session.cache.length == len(CONTEXT)
    for array, kept in zip(owner.session.cache.arrays, before[1], strict=True):
        assert np.array_equal(array[:, :, : len(CONTEXT)], kept)


@pytest.mark.parametrize("rule", RULES, ids=["greedy", "coupled"])
def test_a_level_with_a_draft_offers_what_it_nearly_chose(rule: Acceptance) -> None:
    decoder, below = decoder_of(target_level()), drafting_level(rule, decoder_of(noisy_copy()))
    found = drafting_level(rule, decoder, below).propose(CONTEXT, TreeLimits(4, [0.0] * 40, least_sum=0.0))
    spine = drafting_level(rule, decoder).propose(CONTEXT, TreeLimits.chain(4)).tokens
    expected: dict[Tokens, float] = {}
    for depth in range(4):
        path = tuple(spine[:depth])
        said = rule.guesses(logits_behind(decoder, path), len(CONTEXT) + depth, 0.0, 8, SHARPNESS)
        expected |= {
            (*path, token): expected.get(path, 1.0) * chance
            for token, chance in zip(said.tokens, said.chances, strict=True)
        }
    assert chances_of(found) == pytest.approx(expected)


def test_a_tree_ends_where_a_pass_does_not_pay_or_confidence_is_lost() -> None:
    decoder = decoder_of(target_level())
    for floor in (0.0, 0.3, 0.6, 1.1):
        drafting = drafting_level(GreedyAcceptance(), decoder)
        by_depth: dict[int, float] = {}
        for path, chance in chances_of(drafting.propose(CONTEXT, TreeLimits(9, [0.0] * 60, least_sum=floor))).items():
            by_depth[len(path)] = by_depth.get(len(path), 0.0) + chance
        assert all(by_depth[depth] >= floor for depth in range(1, max(by_depth)))
    unsure = drafting_level(GreedyAcceptance(), decoder, confidence=1.0)
    assert unsure.propose(CONTEXT, TreeLimits(9, [0.0] * 8)).depth == 1


def test_a_draft_has_nothing_to_say_behind_tokens_or_positions_that_it_does_not_have() -> None:
    drafting = drafting_level(GreedyAcceptance(), decoder_of(target_level()))
    assert drafting.propose([1, VOCAB_SIZE, 2], TreeLimits(4, [0.0] * 4)).tokens == []
    assert drafting.propose(CONTEXT, TreeLimits(4, [])).tokens == []
    assert drafting.propose([2] * (MAX_POSITIONS - 1), TreeLimits(9, [0.0] * 20, least_sum=0.0)).depth == 2
    assert drafting.propose([2] * (MAX_POSITIONS + 1), TreeLimits(9, [0.0] * 20, least_sum=0.0)).tokens == []


def test_a_tree_fills_a_pass_and_no_more() -> None:
    hierarchy = Hierarchy([target_level(), self_draft()], [8], [0.0], 63)
    assert assert_lossless(hierarchy, CONTEXT, 8).trace.statistics[1].num_nodes == 63


NUM_TEXTS = 500


def tail_of_trees(rule: RejectionAcceptance, num_levels: int, num_nodes: int, unknown: Sequence[int]) -> float:
    """The chi-square tail of the first two tokens of many texts whose drafts are trees, of all tokens but `unknown`."""
    made = tables((5,) * num_levels)
    for table in made[1:]:
        table[:, list(unknown)] = -np.inf
    levels = [markov(f"level {number}", table) for number, table in enumerate(made)]
    hierarchy = Hierarchy(levels, [3], [0.0], num_nodes)
    target = hierarchy.link(hierarchy.begin().trace.statistics, rule)
    pairs = pairs_of(target, 5, NUM_TEXTS)
    shares = np.array([distribution(row, rule.sampling) for row in made[0]])
    return tail_of_counts(pairs.ravel(), (shares[0][:, None] * shares).ravel())


@pytest.mark.parametrize("rule", [RejectionAcceptance, BlockAcceptance])
@pytest.mark.parametrize(
    ("num_levels", "num_nodes", "sampling", "unknown"),
    [
        (2, 20, Sampling(), (1, 4)),
        (2, 3, Sampling(0.8, top_k=4), ()),
        (3, 8, Sampling(), ()),
        (3, 8, Sampling(), (0, 2)),
    ],
    ids=str,
)
def test_trees_that_models_draw_keep_the_targets_distribution(
    num_levels: int, num_nodes: int, sampling: Sampling, unknown: tuple[int, ...], rule: type[RejectionAcceptance]
) -> None:
    tail = tail_of_trees(rule(sampling, 5), num_levels, num_nodes, unknown)
    assert tail > FALSE_ALARM
