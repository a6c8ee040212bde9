"""Parts of the target left out while decoding: nothing changes but the draft, which leaves out what adds nothing.

What a study compares, how often it is made, and which sets it finds.
"""

from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from packages import quantize
from plug_ins import RECYCLING
from tiny_levels import (
    VOCAB_SIZE,
    assert_lossless,
    by_hand,
    decoder_of,
    dense,
    norms,
    record,
    record_of,
    self_draft,
    speculate,
    target_level,
    tiny_config,
    tiny_values,
)

from mxconv.codecs.float16 import BF16
from mxconv.drafts.kind import ModelKind
from mxconv.drafts.kinds import KINDS, kind_of, parse_draft
from mxconv.drafts.loader import LoadedPackage
from mxconv.drafts.pass_cost import PartBytes
from mxconv.drafts.variant_draft import PartChoice, Rehearsal, StudyBudget, VariantDraft
from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.engine.skipped import Skipped
from mxconv.engine.tree import TreeLimits
from mxconv.engine.weights import ModelWeights
from mxconv.errors import ModelError, MxconvError
from mxconv.speculation.acceptance import Acceptance, CoupledAcceptance, GreedyAcceptance
from mxconv.speculation.guesses import Sharpness
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.loaded_level import LoadedLevel
from mxconv.speculation.model_draft import ModelDraft
from mxconv.speculation.pace import FixedPace
from mxconv.speculation.proposal import Proposal
from mxconv.speculation.round import Level
from mxconv.speculation.selection import GREEDY, Selection
from mxconv.speculation.session import Session
from mxconv.speculation.statistics import LevelStatistics
from mxconv.text.distribution import Sampling
from mxconv.text.penalties import Penalties

COUPLED = Selection(Sampling(0.9), "coupled", 3)
PROMPT = [3, 1, 4, 1, 5, 9, 2]
SIZES = {"num_layers": 6, "max_position_embeddings": 400}


def level_of(spec: str, target: LoadedLevel, name: str = "draft") -> LoadedLevel:
    found = record_of(parse_draft(spec), name)
    return LoadedLevel(found, kind_of(found).of_decoder(decoder_of(target), found), kind=kind_of(found))


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that goes on by a nanosecond whenever it is read, so that what is studied depends on no machine."""
    clock = SimpleNamespace(perf_counter=(number * 1e-9 for number in count()).__next__)
    monkeypatch.setattr("mxconv.speculation.passes.time", clock)


MODEL = Path(__file__).parents[2] / "examples" / "models" / "pylib-0.2m"  # three layers


@pytest.mark.usefixtures("ticks")
@pytest.mark.parametrize(
    ("kind", "selection", "below"),
    [
        ("swift", GREEDY, ["early-exit", RECYCLING]),
        ("swift", COUPLED, []),
        ("early-exit", GREEDY, []),
        ("early-exit", COUPLED, ["layer-skip:1-4"]),
    ],
)
def test_tokens_and_logits_are_the_targets_own(kind: str, selection: Selection, below: list[str]) -> None:
    target = target_level(**SIZES)
    levels = [target, level_of(kind, target, "first")]
    for spec in below:
        found = parse_draft(spec)
        is_model = found.kind not in ("prompt-lookup", RECYCLING)
        levels.append(
            level_of(spec, target, spec)
            if is_model
            else LoadedLevel(record_of(found, spec), None, kind=KINDS[found.kind])
        )
    hierarchy = Hierarchy(levels, [4], [0.0])
    assert_lossless(hierarchy, PROMPT, 40, (), selection)
    assert hierarchy._variants[1].choice.num_studies > 0
    found, _ = speculate(Hierarchy(levels, "auto"), PROMPT, 40, (), selection)
    assert found == by_hand(decoder_of(target), PROMPT, 40, (), selection)
    assert_lossless(Hierarchy([target, self_draft(**SIZES), *levels[1:]], [4]), PROMPT, 30, (), selection)


@pytest.mark.usefixtures("ticks")
@pytest.mark.parametrize(("codec", "kernel"), [("bsfp", "numpy"), ("mxfp4", None)])
def test_a_package_decodes_as_without_them(tmp_path: Path, codec: str, kernel: str | None) -> None:
    quantize(MODEL, tmp_path / "package", codec=codec)
    specs = [parse_draft("swift"), parse_draft("early-exit")]
    with LoadedPackage(tmp_path / "package", kernel=kernel, num_threads=2, drafts=specs) as loaded:
        target, own, swift, exits = loaded.levels
        ids = loaded.tokenizer.encode("import os\n\ndef ")
        for selection in (GREEDY, COUPLED):
            plain = speculate(Hierarchy([target]), ids, 20, (), selection)[0]
            for drafts in ([swift], [exits], [own, swift]):
                hierarchy = Hierarchy([target, *drafts])
                found, generation = speculate(hierarchy, ids, 20, (), selection)
                first = generation.trace.statistics[1]
                assert found == plain
                assert first.num_proposed > 0
                assert drafts == [exits] or first.num_accepted > 0  # three layers have no early exit
                assert next(iter(hierarchy._variants.values())).choice.num_studies > 0


@pytest.mark.parametrize(
    ("kind", "acceptance"), [("swift", GreedyAcceptance()), ("early-exit", CoupledAcceptance(Sampling(0.8), 7))]
)
def test_proposing_and_studying_leave_the_shared_session_as_it_was(kind: str, acceptance: Acceptance) -> None:
    target = target_level(**SIZES)
    decoder = decoder_of(target)
    session = Session(KVCache(decoder.config))
    text = [*PROMPT, *range(1, 20)]
    session.feed(decoder, text, 1)
    before = [array[:, :, : len(text)].copy() for array in session.cache.arrays]
    statistics = LevelStatistics("draft")
    level = Level(decoder, session, True, VOCAB_SIZE, acceptance, statistics, [], FixedPace(1))
    kind_of_draft = KINDS[kind]
    assert isinstance(kind_of_draft, ModelKind)
    variants = kind_of_draft.varied(level_of(kind, target), decoder)
    assert variants is not None
    variants.budget = StudyBudget(first_rounds=100.0)
    draft = VariantDraft(ModelDraft(level, 0.0, Sharpness()), variants)
    draft.propose([*PROMPT, 1], TreeLimits.chain(1))  # it learns where the prompt ends
    for _ in range(6):
        draft.observe([1], Proposal([]), np.zeros((1, VOCAB_SIZE), np.float32))
        assert 1 <= len(draft.propose([*text, 3], TreeLimits.chain(5)).tokens) <= 5
        assert session.tokens == text
        assert session.cache.length == len(text)
        for array, kept in zip(session.cache.arrays, before, strict=True):
            np.testing.assert_array_equal(array[:, :, : len(text)], kept)
    assert variants.choice.num_studies == 5  # the first round's length was not known yet


def test_a_rehearsal_is_under_the_penalties_of_the_text() -> None:
    """The target itself agrees with all of its text; without them it would not."""
    decoder = decoder_of(target_level(**SIZES))
    selection = Selection(penalties=Penalties(1.5, 0.5, 0.5))
    text = [*PROMPT, *by_hand(decoder, PROMPT, 40 - len(PROMPT), (), selection).token_ids]
    session = Session(KVCache(decoder.config))
    session.feed(decoder, text[:-1], 1)
    rehearsal = Rehearsal.of(session, text, len(PROMPT))
    assert rehearsal is not None
    assert rehearsal.agreed(decoder, selection.acceptance(len(PROMPT)), VOCAB_SIZE) == rehearsal.num_tokens
    assert rehearsal.agreed(decoder, GreedyAcceptance(), VOCAB_SIZE) < rehearsal.num_tokens


def test_a_cache_of_its_own_is_refused() -> None:
    target = target_level(**SIZES)
    draft = level_of("swift", target)
    own = draft.record.model_copy(update={"shares": ["weights", "tokenizer"]})
    with pytest.raises(
        ModelError, match=r"^level draft: swift with a cache of its own; its layers change, so it must read"
    ):
        Hierarchy([target, LoadedLevel(own, draft.decoder, kind=draft.kind)])
    pytest.importorskip("torch")
    from mxconv.interop.transformers.generate_drafts import DraftLevels

    with pytest.raises(ModelError, match=r"swift with a cache of its own"):  # nobody can share torch's
        DraftLevels([target, draft])


def test_a_model_with_nothing_to_leave_out_is_refused(tmp_path: Path) -> None:
    quantize(MODEL, tmp_path / "package")
    for spec in ("swift:skip=0.1", "swift:skip=0"):
        with pytest.raises(ModelError, match=r"^skipped layers: a share of 0(\.1)? of the parts of 3 layers is none"):
            LoadedPackage(tmp_path / "package", ["target"], drafts=[parse_draft(spec)])
        with pytest.raises(MxconvError, match=r"^skipped layers: a share of 0(\.1)? of the parts of 3 layers is none"):
            quantize(MODEL, tmp_path / "other", drafts=(spec,))


def with_idle(idle: str) -> LoadedLevel:
    """A target some of whose parts add nothing to their input."""
    config, skipped = tiny_config(**SIZES), Skipped.parse(idle, 6)
    values = tiny_values(config, 5)
    for layers, part in ((skipped.attention, "self_attn.o_proj"), (skipped.mlp, "mlp.down_proj")):
        for layer in layers:
            values[f"model.layers.{layer}.{part}.weight"][:] = 0
    return LoadedLevel(record("target"), Decoder(config, ModelWeights(dense(values, BF16), norms(config)), "target"))


@pytest.mark.usefixtures("ticks")
@pytest.mark.parametrize(
    ("spec", "idle"), [("swift:skip=0.4,confidence=0", "a1+2+m4"), ("early-exit,confidence=0", "3-5")]
)
def test_a_draft_comes_to_leave_out_what_the_target_does_without(spec: str, idle: str) -> None:
    target = with_idle(idle)
    hierarchy = Hierarchy([target, level_of(spec, target)])
    choice = hierarchy._variants[1].choice
    for number in range(3):
        generation = hierarchy.generate([number, *PROMPT], 150, selection=Selection(Sampling(1.0), seed=1))
    best, wanted = choice.best, Skipped.parse(idle, 6)
    assert best.attention <= wanted.attention
    assert best.mlp <= wanted.mlp
    assert len(best) >= len(wanted) - (1 if spec.startswith("swift") else 0)
    assert generation.trace.statistics[1].acceptance_rate == 1.0


def test_of_exits_the_one_worth_most_is_found_and_left_where_the_text_changes() -> None:
    parts = PartBytes((1.0,) * 8, (2.0,) * 8, 3.0)
    exits = [Skipped.exit_after(kept, 8) for kept in range(1, 8)]
    choice, random = PartChoice(parts, exits), np.random.default_rng(0)
    for least in (2, 6):  # layers without which it hardly agrees
        agreements = {skipped: 0.95 if 8 - len(skipped) // 2 >= least else 0.1 for skipped in exits}
        for _ in range(300):
            skipped = choice.to_study()
            choice.learn(skipped, int(random.binomial(16, agreements[skipped])), 16)
        assert choice.best == Skipped.exit_after(least, 8)


def test_no_more_than_the_share_is_left_out_though_nothing_costs_anything() -> None:
    parts, first = PartBytes((1.0,) * 8, (2.0,) * 7 + (0.0,), 1.0), Skipped.spread(8, 0.3)
    choice = PartChoice(parts, [first], len(first))
    for _ in range(400):
        skipped = choice.to_study()
        assert 1 <= len(skipped) <= len(first)
        assert not {0, 7} & (skipped.attention | skipped.mlp)
        choice.learn(skipped, 16, 16)
    assert len(choice.best.mlp) == len(first)  # the dearer parts
    assert len(choice._known) <= 64


def test_studies_are_paid_from_a_small_share_and_a_few_rounds() -> None:
    for seconds_a_study in (0.1, 1.0, 7.0):
        budget = StudyBudget(first_rounds=3.0)
        assert not budget.allows  # nothing is known yet
        for _ in range(400):
            budget.pay(1.0)
            if budget.allows:
                budget.spend(seconds_a_study)
        assert 0.05 * 400 - seconds_a_study <= budget.study_seconds <= 3.0 + 0.05 * 400 + seconds_a_study
