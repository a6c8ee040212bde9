"""Skipped sets searched while decoding: the draft comes to leave out what adds nothing, for a small price."""

import numpy as np
import pytest
from swift_levels import COUPLED, PROMPT, SIZES, level_of
from tiny_levels import dense, norms, record, target_level, tiny_config, tiny_values

from mxconv.codecs.float16 import BF16
from mxconv.drafts.acceptance import GreedyAcceptance
from mxconv.drafts.draft_price import DraftPrice, PartBytes, speedup
from mxconv.drafts.guesses import SHARPNESS
from mxconv.drafts.kind import LoadedLevel
from mxconv.drafts.statistics import LevelStatistics
from mxconv.drafts.studies import StudyBudget
from mxconv.drafts.swift import PATIENCE, PartLosses, SkipSearch
from mxconv.drafts.variant_draft import VariantDraft
from mxconv.engine.decoder import Decoder
from mxconv.engine.skipped import Skipped
from mxconv.engine.weights import ModelWeights
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.selection import Selection
from mxconv.text.distribution import Sampling

IDLE = Skipped.parse("a1+2+m4", 6)  # what the target below does without


def target_with_idle_parts() -> LoadedLevel:
    """Parts of IDLE add nothing to their input."""
    config = tiny_config(**SIZES)
    values = tiny_values(config, 5)
    for layers, part in ((IDLE.attention, "self_attn.o_proj"), (IDLE.mlp, "mlp.down_proj")):
        for layer in layers:
            values[f"model.layers.{layer}.{part}.weight"][:] = 0
    return LoadedLevel(record("target"), Decoder(config, ModelWeights(dense(values, BF16), norms(config)), "target"))


def search_of(hierarchy: Hierarchy, index: int = 1) -> SkipSearch:
    choice = hierarchy._chain._variants[index].choice
    assert isinstance(choice, SkipSearch)
    return choice


@pytest.mark.usefixtures("ticks")
def test_the_search_comes_to_skip_exactly_what_the_target_does_without() -> None:
    target = target_with_idle_parts()
    hierarchy = Hierarchy([target, level_of("swift,confidence=0", target)])
    search = search_of(hierarchy)
    assert search.skipped != IDLE
    selection = Selection(Sampling(1.0), "coupled", 1)
    for number in range(4):
        generation = hierarchy.generate([number, *PROMPT], 150, selection=selection)
    assert search.skipped == IDLE
    assert generation.trace.statistics[1].acceptance_rate == 1.0


def test_how_sharply_the_target_agrees_with_its_variants_is_learned() -> None:
    target = target_with_idle_parts()
    hierarchy = Hierarchy([target, level_of("swift,confidence=0", target)], [4], tree=12)
    hierarchy.generate(PROMPT, 40)
    assert hierarchy._chain._sharpness[1].value != SHARPNESS


def simulated(search: SkipSearch, losses: dict[tuple[str, int], float], num_studies: int, seed: int = 0) -> None:
    """Studies of 16 tokens, each of which agrees by the product of its parts' factors."""
    random = np.random.default_rng(seed)
    for _ in range(num_studies):
        skipped = search.to_study()
        if skipped is None:
            return
        assert len(skipped) >= 1
        search.learn(skipped, int(random.binomial(16, agreement(skipped, losses))), 16)


def agreement(skipped: Skipped, losses: dict[tuple[str, int], float]) -> float:
    parts = [*(("a", layer) for layer in skipped.attention), *(("m", layer) for layer in skipped.mlp)]
    return float(np.exp(-sum(losses[part] for part in parts)))


@pytest.mark.parametrize("seed", range(4))
def test_of_many_layers_a_better_set_is_found(seed: int) -> None:
    """Thirty-two layers whose parts cost little, a few of them much."""
    random = np.random.default_rng(seed)
    losses = {(kind, layer): float(random.lognormal(-5, 1.3)) for layer in range(32) for kind in "am"}
    price = DraftPrice(PartBytes((1.0,) * 32, (2.0,) * 32, 3.0))
    search = SkipSearch(price, 32, 0.45)
    search.choose(8)
    first = search.skipped
    simulated(search, losses, 300, seed)
    before, after = (speedup(agreement(s, losses), price.of(s), 8)[0] for s in (first, search.skipped))
    assert after > 1.02 * before
    assert len(search.skipped) <= 28
    assert not {0, 31} & (search.skipped.attention | search.skipped.mlp)


def test_no_more_than_the_share_is_left_out_though_nothing_costs_anything() -> None:
    price = DraftPrice(PartBytes((1.0,) * 8, (2.0,) * 8, 1.0))
    search = SkipSearch(price, 8, 0.25)
    simulated(search, {(kind, layer): 0.0 for layer in range(8) for kind in "am"}, 200)
    assert len(search.skipped) == 4  # of sixteen parts
    assert len(search.skipped.mlp) >= 3  # the greater ones


def test_the_search_rests_when_nothing_better_is_found_and_wakes_when_less_is_accepted() -> None:
    search = SkipSearch(DraftPrice(PartBytes((1.0,) * 6, (1.0,) * 6, 1.0)), 6, 0.3)
    search.choose(4)
    losses = {(kind, layer): 0.2 + 0.1 * layer for layer in range(6) for kind in "am"}
    simulated(search, losses, 40 * PATIENCE)
    assert search.rests
    num_studies = search.num_studies
    assert num_studies < 40 * PATIENCE
    for _ in range(4):
        search.judged(50, 64)
        assert search.to_study() is None
    search.judged(30, 63)
    assert search.rests  # too few to tell
    search.judged(0, 1)
    assert not search.rests
    assert search.to_study() is not None


def test_a_set_that_cannot_be_bettered_ends_the_search() -> None:
    search = SkipSearch(DraftPrice(PartBytes((1.0,) * 4, (1.0,) * 4, 1.0)), 4, 1.0)
    assert str(search.skipped) == "1-2"  # all that may be
    for number in range(3):
        assert search.to_study() is not None, number
        search.learn(Skipped.parse("1-2", 4), 16, 16)
        if search.rests:
            break
    assert number > 0
    assert search.to_study() is None


def test_studies_are_paid_from_a_small_share_and_a_few_rounds() -> None:
    for seconds_a_study in (0.1, 1.0, 7.0):
        budget = StudyBudget(share=0.05, first_rounds=3.0)
        assert not budget.allows  # nothing is known yet
        num_studies = 0
        for _ in range(400):
            budget.pay(1.0)
            if budget.allows:
                budget.spend(seconds_a_study)
                num_studies += 1
        spent = num_studies * seconds_a_study
        assert budget.study_seconds == pytest.approx(spent)
        assert budget.decoding_seconds == pytest.approx(400)
        assert 0.05 * 400 - seconds_a_study <= spent <= 3.0 + 0.05 * 400 + seconds_a_study


def test_a_pause_between_rounds_pays_for_next_to_nothing() -> None:
    budget = StudyBudget(share=0.05, first_rounds=0.0)
    for _ in range(3):
        for number in range(10):
            budget.pay(500.0 if number == 6 else 1.0)
    assert budget.decoding_seconds < 3 * (8 + 3 * 3.0)


@pytest.mark.usefixtures("ticks")
def test_a_run_studies_as_often_as_its_budget_allows() -> None:
    target = target_level(**SIZES)
    hierarchy = Hierarchy([target, level_of("swift,confidence=0", target)], [3])
    num_rounds = num_forwards = num_drafted = 0
    for number in range(3):
        generation = hierarchy.generate([number, *PROMPT], 60, selection=COUPLED)
        num_rounds += generation.trace.num_rounds
        num_forwards += generation.trace.statistics[1].num_forwards
        num_drafted += generation.trace.statistics[1].num_proposed
    budget, studies = hierarchy._chain._variants[1].budget, search_of(hierarchy).num_studies
    num_ticks = round(budget.decoding_seconds * 1e9)
    assert budget.study_seconds == pytest.approx(studies * 1e-9)  # of one tick each
    assert num_ticks <= 32 * num_rounds  # of a few ticks each
    assert 0.04 * num_ticks < studies <= 6 * 32 + 0.05 * num_ticks + 1
    assert num_forwards == studies + num_drafted  # a forward pass each


def test_what_was_learned_stays_for_the_next_text() -> None:
    target = target_level(**SIZES)
    hierarchy = Hierarchy([target, level_of("swift", target)])
    choices = []
    for _ in range(2):
        run = hierarchy._chain.link([LevelStatistics(level.name) for level in hierarchy.levels], GreedyAcceptance())
        (draft,) = run.drafts
        assert isinstance(draft, VariantDraft)
        choices.append(draft._variants.choice)
    assert choices[0] is choices[1]


def test_losses_of_parts_follow_from_sets() -> None:
    true = np.array([0.01, 0.3, 0.05, 0.6, 0.0])
    losses, random = PartLosses(5), np.random.default_rng(0)
    for _ in range(300):
        places = np.flatnonzero(random.random(5) < 0.5).tolist() or [0]
        losses.learn(places, int(random.binomial(64, np.exp(-true[places].sum()))), 64)
    np.testing.assert_allclose(losses.believed(), true, atol=0.08)
    drawn = np.array([losses.drawn(random.standard_normal(5)) for _ in range(300)])
    np.testing.assert_allclose(drawn.mean(0), true, atol=0.08)
    losses.forget(1.0)
    np.testing.assert_allclose(losses.believed(), 0.3)


def test_a_price_takes_a_fixed_surcharge_from_slow_rounds_and_a_share_from_fast_ones() -> None:
    whole, half = Skipped(), Skipped.parse("0-1", 4)
    price = DraftPrice(PartBytes((1.0,) * 4, (1.0,) * 4, 0.0))
    assert (price.of(whole), price.of(half)) == (1.0, 0.5)
    price.learn(half, 4, 4.0, 1.0)  # a pass each, where half of one was expected
    assert (price.of(whole), price.of(half)) == (1.5, 1.0)
    price = DraftPrice(PartBytes((1.0,) * 4, (1.0,) * 4, 0.0))
    price.learn(half, 4, 1.0, 1.0)
    assert (price.of(whole), price.of(half)) == (0.5, 0.25)
    price.learn(half, 0, 1.0, 1.0)
    assert price.of(half) == 0.25


def test_the_speedup_is_that_of_the_best_length() -> None:
    for rate, price, most in ((0.9, 0.1, 16), (0.5, 0.3, 4), (1.0, 0.5, 8), (0.0, 0.2, 5)):
        by_length = [sum(rate**i for i in range(n + 1)) / (1 + n * price) for n in range(1, most + 1)]
        found, length = speedup(rate, price, most)
        assert found == pytest.approx(max(by_length))
        assert by_length[length - 1] == pytest.approx(found)
