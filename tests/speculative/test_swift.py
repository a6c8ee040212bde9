"""Skipped sets searched while decoding: nothing changes but the draft, which comes to leave out what adds nothing."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from packages import quantize
from tiny_levels import (
    VOCAB_SIZE,
    assert_lossless,
    by_hand,
    decoder_of,
    dense,
    norms,
    record,
    self_draft,
    speculate,
    target_level,
    tiny_config,
    tiny_values,
)

from mxconv.checkpoint.draft_spec import parse_draft
from mxconv.codecs.float16 import BF16
from mxconv.errors import ModelError, MxconvError
from mxconv.model.cache import KVCache
from mxconv.model.decoder import Decoder
from mxconv.model.distribution import Sampling
from mxconv.model.loaded_level import LoadedLevel
from mxconv.model.loader import LoadedPackage
from mxconv.model.skipped import Skipped
from mxconv.model.weights import Weights
from mxconv.speculative.acceptance import Acceptance
from mxconv.speculative.draft import Proposal
from mxconv.speculative.guesses import SHARPNESS
from mxconv.speculative.hierarchy import Hierarchy
from mxconv.speculative.level import Level
from mxconv.speculative.pacing.pace import FixedPace
from mxconv.speculative.rules.coupled import CoupledAcceptance
from mxconv.speculative.rules.greedy import GreedyAcceptance
from mxconv.speculative.selection import GREEDY, Selection
from mxconv.speculative.self_drafts.draft_price import DraftPrice, speedup
from mxconv.speculative.self_drafts.part_bytes import PartBytes
from mxconv.speculative.self_drafts.part_losses import PartLosses
from mxconv.speculative.self_drafts.rehearsal import Rehearsal
from mxconv.speculative.self_drafts.skip_search import PATIENCE, SkipSearch
from mxconv.speculative.self_drafts.study_budget import StudyBudget
from mxconv.speculative.self_drafts.variant_draft import VariantDraft, Variants
from mxconv.speculative.session import Session
from mxconv.speculative.statistics import LevelStatistics

MODEL = Path(__file__).parents[2] / "examples" / "models" / "pylib-0.2m"  # three layers
COUPLED = Selection(Sampling(0.9), "coupled", 3)
PROMPT = [3, 1, 4, 1, 5, 9, 2]
IDLE = Skipped.parse("a1+2+m4", 6)  # what the target below does without
SIZES = {"num_layers": 6, "max_position_embeddings": 400}


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that goes on by a nanosecond whenever it is read, so that what is studied depends on no machine."""
    clock = SimpleNamespace(perf_counter=(number * 1e-9 for number in count()).__next__)
    monkeypatch.setattr("mxconv.speculative.passes.time", clock)


def level_of(spec: str, target: LoadedLevel, name: str = "draft") -> LoadedLevel:
    found = parse_draft(spec).record(name)
    decoder = decoder_of(target)
    return LoadedLevel(found, decoder.variant(Skipped.at_first(found, decoder.config.num_hidden_layers)))


def target_with_idle_parts() -> LoadedLevel:
    """Parts of IDLE add nothing to their input."""
    config = tiny_config(**SIZES)
    values = tiny_values(config, 5)
    for layers, part in ((IDLE.attention, "self_attn.o_proj"), (IDLE.mlp, "mlp.down_proj")):
        for layer in layers:
            values[f"model.layers.{layer}.{part}.weight"][:] = 0
    return LoadedLevel(record("target"), Decoder(config, Weights(dense(values, BF16), norms(config)), "target"))


def search_of(hierarchy: Hierarchy, index: int = 1) -> SkipSearch:
    choice = hierarchy._chain._variants[index].choice
    assert isinstance(choice, SkipSearch)
    return choice


# the search comes to what is best


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


# when it searches, and when it rests


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


# nothing else changes


@pytest.mark.usefixtures("ticks")
@pytest.mark.parametrize("kind", ["swift", "early-exit"])
@pytest.mark.parametrize("selection", [GREEDY, COUPLED], ids=["greedy", "coupled"])
@pytest.mark.parametrize("below", [[], ["layer-skip:1-4"], ["early-exit", "token-recycling"]])
def test_tokens_and_logits_are_the_targets_own(kind: str, selection: Selection, below: list[str]) -> None:
    target = target_level(**SIZES)
    levels = [target, level_of(kind, target, "first")]
    for spec in below:
        found = parse_draft(spec)
        is_model = found.kind not in ("prompt-lookup", "token-recycling")
        levels.append(level_of(spec, target, spec) if is_model else LoadedLevel(found.record(spec), None))
    hierarchy = Hierarchy(levels, [4], [0.0])
    assert_lossless(hierarchy, PROMPT, 40, (), selection)
    assert hierarchy._chain._variants[1].choice.num_studies > 0
    found, _ = speculate(Hierarchy(levels, "auto"), PROMPT, 40, (), selection)
    assert found == by_hand(decoder_of(target), PROMPT, 40, (), selection)
    assert_lossless(Hierarchy([target, self_draft(**SIZES), *levels[1:]], [4]), PROMPT, 30, (), selection)


@pytest.fixture(scope="module", params=["bsfp", "mxfp4"])
def package(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("swift") / "package"
    quantize(MODEL, folder, codec=request.param)
    return folder


KERNELS = ["numpy", None]


@pytest.fixture(params=KERNELS, ids=["numpy", "native"])
def loaded(request: pytest.FixtureRequest, package: Path) -> Iterator[list[LoadedLevel]]:
    """The target, the package's own draft, and the two that change."""
    if request.param is None:
        pytest.importorskip("mxconv.kernels._native", reason="native kernels were not built")
    specs = [parse_draft("swift"), parse_draft("early-exit")]
    with LoadedPackage(package, kernel=request.param, num_threads=2, drafts=specs) as opened:
        yield opened.levels


@pytest.mark.usefixtures("ticks")
@pytest.mark.parametrize("selection", [GREEDY, COUPLED], ids=["greedy", "coupled"])
def test_a_package_decodes_as_without_them(loaded: list[LoadedLevel], selection: Selection) -> None:
    target, own, swift, exits = loaded
    assert target.tokenizer is not None
    ids = target.tokenizer.encode("import os\n\ndef ")
    plain = speculate(Hierarchy([target]), ids, 20, (), selection)[0]
    for drafts in ([swift], [exits], [own, swift]):
        hierarchy = Hierarchy([target, *drafts])
        found, generation = speculate(hierarchy, ids, 20, (), selection)
        assert found == plain
        assert generation.trace.statistics[1].num_accepted > 0
        assert next(iter(hierarchy._chain._variants.values())).choice.num_studies > 0


@pytest.mark.parametrize("kind", ["swift", "early-exit"])
@pytest.mark.parametrize(
    "acceptance", [GreedyAcceptance(), CoupledAcceptance(Sampling(0.8), 7)], ids=["greedy", "drawn"]
)
def test_proposing_and_studying_leave_the_shared_session_as_it_was(kind: str, acceptance: Acceptance) -> None:
    target = target_level(**SIZES)
    decoder = decoder_of(target)
    session = Session(KVCache(decoder.config))
    text = [*PROMPT, *range(1, 20)]
    session.feed(decoder, text, 1)
    before = [array[:, :, : len(text)].copy() for array in session.cache.arrays]
    statistics = LevelStatistics("draft")
    level = Level(decoder, session, True, VOCAB_SIZE, 0.0, acceptance, statistics, [], FixedPace(1))
    variants = Variants(level_of(kind, target), decoder)
    variants.budget = StudyBudget(first_rounds=100.0)
    draft = VariantDraft(level, variants)
    draft.propose([*PROMPT, 1], 1)  # it learns where the prompt ends
    for _ in range(6):
        draft.observe([1], Proposal([]), np.zeros((1, VOCAB_SIZE), np.float32))
        assert 1 <= len(draft.propose([*text, 3], 5).tokens) <= 5
        assert session.tokens == text
        assert session.cache.length == len(text)
        for array, kept in zip(session.cache.arrays, before, strict=True):
            np.testing.assert_array_equal(array[:, :, : len(text)], kept)
    assert variants.choice.num_studies == 5  # the first round's length was not known yet


# what a study compares


@pytest.mark.parametrize(
    "acceptance", [GreedyAcceptance(), CoupledAcceptance(Sampling(0.8), 7)], ids=["greedy", "drawn"]
)
@pytest.mark.parametrize("spec", ["1", "a2+m3", "4-5", "none"])
def test_a_rehearsal_counts_what_the_variant_would_have_said(acceptance: Acceptance, spec: str) -> None:
    decoder = decoder_of(target_level(**SIZES))
    variant = decoder.variant(Skipped.parse(spec, 6))
    session = Session(KVCache(decoder.config))
    text = [*PROMPT]
    while len(text) < 40:
        row = session.feed(decoder, text[len(session.tokens) :], 1)
        text.append(
            acceptance.draw(row[0], len(text)) if isinstance(acceptance, CoupledAcceptance) else int(row.argmax())
        )
    rehearsal = Rehearsal.of(session, text, len(PROMPT))
    assert rehearsal is not None
    assert (rehearsal.start, rehearsal.num_tokens) == (39 - 16, 16)
    cache = KVCache(decoder.config)
    decoder.forward(text[:23], cache)
    expected = 0
    for place in range(23, 39):  # token by token, on a cache of its own
        row = variant.forward(text[place : place + 1], cache)[0]
        drawn = isinstance(acceptance, CoupledAcceptance)
        ours = acceptance.draw(row, place + 1) if drawn else int(row.argmax())  # type: ignore[attr-defined]
        expected += ours == text[place + 1]
    assert rehearsal.agreed(variant, acceptance, VOCAB_SIZE) == expected
    assert expected == 16 or spec != "none"


def test_only_what_the_level_above_has_written_is_rehearsed() -> None:
    decoder = decoder_of(target_level(**SIZES))
    session = Session(KVCache(decoder.config))
    text = [*PROMPT, 5, 6, 7, 8, 9]
    session.feed(decoder, text[:-1], 1)
    found = Rehearsal.of(session, text, len(PROMPT))
    assert found is not None
    assert (found.start, list(found.tokens)) == (len(PROMPT) - 1, [2, 5, 6, 7, 8, 9])
    assert Rehearsal.of(session, text, len(PROMPT) + 2) is None  # too little
    assert Rehearsal.of(session, [*text[:9], 1, 1], len(PROMPT)) is None  # another text
    assert Rehearsal.of(session, text[:-1], len(PROMPT)) is None  # less than the session has


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


# what is refused


def test_a_cache_of_its_own_is_refused() -> None:
    target = target_level(**SIZES)
    draft = level_of("swift", target)
    own = draft.record.model_copy(update={"shares": ["weights", "tokenizer"]})
    with pytest.raises(
        ModelError, match=r"^level draft: swift with a cache of its own; its layers change, so it must read"
    ):
        Hierarchy([target, LoadedLevel(own, draft.decoder)])
    pytest.importorskip("torch")
    from mxconv.interop.transformers.chain import DraftLevels

    with pytest.raises(ModelError, match=r"swift with a cache of its own"):  # nobody can share torch's
        DraftLevels([target, draft])


def test_a_model_with_nothing_to_leave_out_is_refused(tmp_path: Path) -> None:
    quantize(MODEL, tmp_path / "package")
    for spec in ("swift:skip=0.1", "swift:skip=0"):
        with pytest.raises(ModelError, match=r"^skipped layers: a share of 0(\.1)? of the parts of 3 layers is none"):
            LoadedPackage(tmp_path / "package", ["target"], drafts=[parse_draft(spec)])
        with pytest.raises(MxconvError, match=r"^skipped layers: a share of 0(\.1)? of the parts of 3 layers is none"):
            quantize(MODEL, tmp_path / "other", drafts=(spec,))
