"""Trees of a model's guesses: the likeliest there are, by frontiers or as runners-up, and decoded with bit for bit."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from chi_square import FALSE_ALARM, tail_of_counts
from markov_levels import markov, tables
from plug_ins import RECYCLING
from tiny_levels import (
    MAX_POSITIONS,
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

from mxconv.arrays import F32
from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.engine.tree import TreeLimits
from mxconv.speculation.acceptance import Acceptance, CoupledAcceptance, GreedyAcceptance, RejectionAcceptance
from mxconv.speculation.block_verification import BlockAcceptance
from mxconv.speculation.guesses import SHARPNESS, Guesses, Sharpness
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.loaded_level import LoadedLevel
from mxconv.speculation.model_draft import ModelDraft
from mxconv.speculation.pace import FixedPace
from mxconv.speculation.proposal import Proposal
from mxconv.speculation.round import Level
from mxconv.speculation.selection import GREEDY, Selection
from mxconv.speculation.session import Session
from mxconv.speculation.statistics import LevelStatistics
from mxconv.speculation.trees import grow_best_first
from mxconv.text.distribution import Sampling, distribution

CONTEXT = [3, 1, 4, 1, 5, 9]
SAMPLING = Sampling(0.9, top_p=0.98)
RULES: list[Acceptance] = [GreedyAcceptance(), CoupledAcceptance(SAMPLING, 11)]
SELECTIONS = (GREEDY, Selection(SAMPLING, "coupled", 7))
Path = tuple[int, ...]


def level(acceptance: Acceptance, decoder: Decoder, draft: ModelDraft | None = None) -> Level:
    return Level(
        decoder=decoder,
        session=Session(KVCache(decoder.config)),
        shares_session=False,
        vocab_size=VOCAB_SIZE,
        acceptance=acceptance,
        statistics=LevelStatistics("level"),
        drafts=[draft] if draft else [],
        pace=FixedPace(3),
    )


def drafting_level(
    acceptance: Acceptance, decoder: Decoder, draft: ModelDraft | None = None, confidence: float = 0.0
) -> ModelDraft:
    return ModelDraft(level(acceptance, decoder, draft), confidence, Sharpness())


def chances_of(proposal: Proposal) -> dict[Path, float]:
    """The chance of every node's path."""
    paths = paths_of(proposal)
    assert len(set(paths)) == len(paths)
    return dict(zip(paths, proposal.chances, strict=True))


def logits_behind(decoder: Decoder, path: Path) -> F32:
    return decoder.forward([*CONTEXT, *path], KVCache(decoder.config))[-1]


def likeliest(rule: Acceptance, decoder: Decoder, most_depth: int, floors: Sequence[float]) -> dict[Path, float]:
    """The same tree, every node evaluated alone in a pass over its whole text."""

    def continuations(path: Path) -> Iterator[tuple[int, float, Path]]:
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
    owner = level(GreedyAcceptance(), decoder)
    owner.round(CONTEXT, 1)
    before = owner.session.tokens[:], [array[:, :, : len(CONTEXT)].copy() for array in owner.session.cache.arrays]
    borrower = replace(level(GreedyAcceptance(), decoder_of(self_draft())), session=owner.session, shares_session=True)
    draft = ModelDraft(borrower, 0.0, Sharpness())
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
    expected: dict[Path, float] = {}
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
        for path, chance in chances_of(drafting.propose(CONTEXT, TreeLimits(9, [0.0] * 8, least_sum=floor))).items():
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


MIXED: list[list[LoadedLevel]] = [
    [self_draft()],
    [self_draft(shares_cache=False)],
    [self_draft(), noisy_copy()],
    [noisy_copy(), look_up(RECYCLING)],
    [self_draft(), noisy_copy(name="small"), look_up("prompt-lookup")],
]


@pytest.mark.parametrize("tree", [12, "auto"])
@pytest.mark.parametrize("drafts", MIXED, ids=lambda drafts: "-".join(level.name for level in drafts))
def test_any_tree_of_models_gives_the_targets_tokens_and_logits(drafts: list[LoadedLevel], tree: int | str) -> None:
    levels = [target_level(), *drafts]
    for selection, confidence in zip(SELECTIONS, ([0.0], None), strict=True):
        hierarchy = Hierarchy(levels, "auto" if tree == "auto" else [4], confidence, tree)  # type: ignore[arg-type]
        found, generation = speculate(hierarchy, CONTEXT, 20, (), selection)
        assert found == by_hand(decoder_of(levels[0]), CONTEXT, 20, (), selection)
        if tree == 12 and confidence:
            statistics = generation.trace.statistics[1]
            assert statistics.num_nodes > statistics.num_proposed  # trees, not chains


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
    pairs = np.zeros((5, 5))
    for _ in range(NUM_TEXTS):
        text = [0]
        while len(text) < 3:
            text += target.round(text, 5).tokens
        pairs[text[1], text[2]] += 1
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


class KeepsLikelyDraws(RejectionAcceptance):
    """Wrong: leaves out what it drew where the token turned out to be unlikely."""

    def guesses(
        self, logits: F32, position: int, least: float, most: int, sharpness: float, first: int | None = None
    ) -> Guesses:
        said = super().guesses(logits, position, least, most, sharpness, first)
        assert said.distribution is not None
        shares = said.distribution[said.tokens]
        kept = [index for index, share in enumerate(shares) if share >= 0.2]
        return Guesses(
            [said.tokens[index] for index in kept], [said.chances[index] for index in kept], said.distribution
        )


def test_a_tree_that_keeps_nodes_for_what_was_drawn_is_found_out() -> None:
    assert tail_of_trees(KeepsLikelyDraws(Sampling(), 5), 2, 8, ()) < FALSE_ALARM
