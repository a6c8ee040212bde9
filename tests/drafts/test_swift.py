"""Skipped sets and exits that follow the text: nothing changes but the draft, and what a study compares."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from packages import quantize
from swift_levels import COUPLED, PROMPT, SIZES, level_of
from tiny_levels import VOCAB_SIZE, assert_lossless, by_hand, decoder_of, self_draft, speculate, target_level

from mxconv.drafts.acceptance import Acceptance, CoupledAcceptance, GreedyAcceptance
from mxconv.drafts.kind import LoadedLevel, ModelKind
from mxconv.drafts.kinds import KINDS, parse_draft, record_of
from mxconv.drafts.loader import LoadedPackage
from mxconv.drafts.proposal import Proposal
from mxconv.drafts.session import Session
from mxconv.drafts.statistics import LevelStatistics
from mxconv.drafts.studies import Rehearsal, StudyBudget
from mxconv.drafts.variant_draft import VariantDraft
from mxconv.engine.cache import KVCache
from mxconv.engine.skipped import Skipped
from mxconv.errors import ModelError, MxconvError
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.level import Level
from mxconv.speculation.pace import FixedPace
from mxconv.speculation.selection import GREEDY, Selection
from mxconv.text.distribution import Sampling
from mxconv.text.penalties import Penalties

MODEL = Path(__file__).parents[2] / "examples" / "models" / "pylib-0.2m"  # three layers


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
        levels.append(level_of(spec, target, spec) if is_model else LoadedLevel(record_of(found, spec), None))
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
    kind_of_draft = KINDS[kind]
    assert isinstance(kind_of_draft, ModelKind)
    variants = kind_of_draft.varied(level_of(kind, target), decoder)
    assert variants is not None
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


def test_a_cache_of_its_own_is_refused() -> None:
    target = target_level(**SIZES)
    draft = level_of("swift", target)
    own = draft.record.model_copy(update={"shares": ["weights", "tokenizer"]})
    with pytest.raises(
        ModelError, match=r"^level draft: swift with a cache of its own; its layers change, so it must read"
    ):
        Hierarchy([target, LoadedLevel(own, draft.decoder)])
    pytest.importorskip("torch")
    from mxconv.interop.transformers.draft_chain import DraftLevels

    with pytest.raises(ModelError, match=r"swift with a cache of its own"):  # nobody can share torch's
        DraftLevels([target, draft])


def test_a_model_with_nothing_to_leave_out_is_refused(tmp_path: Path) -> None:
    quantize(MODEL, tmp_path / "package")
    for spec in ("swift:skip=0.1", "swift:skip=0"):
        with pytest.raises(ModelError, match=r"^skipped layers: a share of 0(\.1)? of the parts of 3 layers is none"):
            LoadedPackage(tmp_path / "package", ["target"], drafts=[parse_draft(spec)])
        with pytest.raises(MxconvError, match=r"^skipped layers: a share of 0(\.1)? of the parts of 3 layers is none"):
            quantize(MODEL, tmp_path / "other", drafts=(spec,))
