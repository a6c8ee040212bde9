"""Drafts of every kind at every place where they make sense: tokens and logits are those of the target alone."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from packages import quantize
from plug_ins import RECYCLING, STAND
from tiny_levels import assert_lossless, by_hand, decoder_of, look_up, noisy_copy, self_draft, speculate, target_level
from trained_levels import PROMPTS, write_noisy, write_padded, write_renumbered

import mxconv
from mxconv.decode import Options
from mxconv.drafts.kinds import KINDS, parse_draft
from mxconv.drafts.loader import LoadedPackage
from mxconv.drafts.prompt_lookup import PromptLookup
from mxconv.errors import ModelError
from mxconv.package.ngram_table import write_ngram_table
from mxconv.speculation.acceptance import GreedyAcceptance
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.loaded_level import LoadedLevel
from mxconv.speculation.model_draft import ModelDraft
from mxconv.speculation.round import Level
from mxconv.speculation.selection import GREEDY, Accept, Selection
from mxconv.text.distribution import Penalties, Sampling
from mxconv.train.ngram_trainer import train_ngram

SELECTIONS = [GREEDY, Selection(Sampling(0.8, top_p=0.95), "coupled", 2**63 + 5)]
MODELS = ("mxfp4", "streaming", "noisy", "padded", "renumbered")
LOOK_UPS = ("prompt-lookup", RECYCLING, "ngram", STAND)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, LoadedLevel]]:
    """Levels by name, those of a package and others; `ngram in other numbers` is for a renumbered model above it."""
    folder = tmp_path_factory.mktemp("chain")
    target = write_noisy(folder / "source", 0.0)
    noisy, padded, other = (
        write_noisy(folder / "noisy"),
        write_padded(folder / "padded"),
        write_renumbered(folder / "renumbered"),
    )
    in_package = (f"checkpoint:{noisy}", f"checkpoint:{padded}", f"checkpoint:{other}")
    quantize(target, folder / "package", drafts=in_package)
    text = folder / "text.txt"
    with mxconv.load(folder / "package", levels=["target"]) as model:
        drawn = Options(temperature=0.8, top_p=0.95, seed=2**63 + 5)
        written = [model.generate(prompt, max_new_tokens=20, **how) for prompt in PROMPTS for how in (Options(), drawn)]
    text.write_text("\n".join(f"{answer.prompt}{answer.text}" for answer in written))
    for source, name in ((target, "ngram"), (other, "renumbered-ngram")):
        write_ngram_table(train_ngram([text], source), folder / f"{name}.safetensors")
    quantize(other, folder / "renumbered-package", drafts=(f"ngram:{folder / 'renumbered-ngram.safetensors'}",))
    specs = ["streaming:sink=2,window=12", "prompt-lookup", f"{RECYCLING},confidence=0.2", f"{STAND},confidence=0.2"]
    specs.append(f"ngram:{folder / 'ngram.safetensors'},confidence=0.1")
    with LoadedPackage(folder / "package", drafts=[]) as package:
        levels = {level.name: level for level in package.levels}
        for spec in specs:
            with_draft = LoadedPackage(folder / "package", ["target"], drafts=[parse_draft(spec)])
            levels[parse_draft(spec).kind] = with_draft.levels[1]
        with LoadedPackage(folder / "renumbered-package", ["target", "renumbered-ngram"]) as renumbered:
            levels["renumbered ngram"] = renumbered.levels[1]
            yield levels


def chosen(loaded: dict[str, LoadedLevel], names: list[str]) -> list[LoadedLevel]:
    """The target and these, their tokenizers shared as the loader would share them."""
    levels = [loaded["target"]]
    for name in names:
        level = loaded[name]
        if "tokenizer" in level.record.shares:
            above = loaded["target"] if level.record.kind == "model" else levels[-1]
            level = replace(level, tokenizer=above.tokenizer)
        levels.append(level)
    return levels


def assert_same_texts(levels: list[LoadedLevel], selection: Selection, num_draft_tokens: list[int]) -> np.ndarray:
    """Proposed and accepted tokens of every draft."""
    hierarchy = Hierarchy(levels, num_draft_tokens)
    encoder = levels[0].tokenizer
    assert encoder is not None
    counts = np.zeros((len(levels) - 1, 2))
    for prompt in PROMPTS:
        statistics = assert_lossless(hierarchy, encoder.encode(prompt), 20, (), selection).trace.statistics[1:]
        counts += [(level.num_proposed, level.num_accepted) for level in statistics]
    return counts


@pytest.mark.parametrize("name", [*MODELS, *LOOK_UPS])
def test_each_kind_alone(loaded: dict[str, LoadedLevel], name: str) -> None:
    """Greedy and coupled in turns."""
    selection = SELECTIONS[[*MODELS, *LOOK_UPS].index(name) % 2]
    ((proposed, accepted),) = assert_same_texts(chosen(loaded, [name]), selection, [4])
    is_rare = name == STAND and selection is not GREEDY  # little comes again in 60 drawn tokens
    assert (accepted > 0 or is_rare) and proposed > 0 and accepted <= proposed
    is_disguised = name in ("noisy", "padded") or (name == "renumbered" and selection is GREEDY)  # noise goes by number
    assert accepted > 0.4 * proposed or not is_disguised


@pytest.mark.parametrize("names", [["padded", STAND], ["mxfp4", "renumbered", "streaming"]], ids=" <- ".join)
def test_penalties_with_drafts_of_other_vocabularies(loaded: dict[str, LoadedLevel], names: list[str]) -> None:
    """Those of a draft with another tokenizer would be of other tokens: it proposes as it is."""
    penalties = Penalties(1.3, 0.5, 0.25, ((1000, 1.0),))
    for sampling in (None, Sampling(0.8, min_p=0.02)):
        counts = assert_same_texts(chosen(loaded, names), Selection(sampling, penalties=penalties), [4])
        assert counts[0, 1] > 0


MIXED = [
    *([model, look_up] for model, look_up in zip(MODELS, (*LOOK_UPS, *LOOK_UPS), strict=False)),
    ["padded", STAND],
    ["mxfp4", "renumbered", STAND],
    ["noisy", "padded", RECYCLING],
    ["renumbered", "renumbered ngram"],
    ["streaming", "mxfp4", "padded", RECYCLING],
    ["mxfp4", "streaming", "renumbered", RECYCLING],
    ["renumbered", "streaming"],  # reads other tokens than those of the cache that it shares
]


@pytest.mark.parametrize("number", range(len(MIXED)), ids=lambda number: " <- ".join(MIXED[number]))
def test_mixed_hierarchies_of_every_depth(loaded: dict[str, LoadedLevel], number: int) -> None:
    """Greedy and coupled in turns."""
    names, selection = MIXED[number], SELECTIONS[number % 2]
    counts = assert_same_texts(chosen(loaded, names), selection, [6, 4, 3, 2][: len(names)])
    assert counts[0, 1] > 0
    if selection is GREEDY:
        assert (counts[1:, 0] > 0).all() or "ngram" in names[-1]


@pytest.mark.parametrize("accept", ["rejection", "block"])
def test_rejection_sampling_runs_through_every_kind(loaded: dict[str, LoadedLevel], accept: Accept) -> None:
    """Other tokens than the target alone would draw, each with logits that the target has for them."""
    selection = Selection(Sampling(0.8), accept, 4)
    for names in (
        ["mxfp4", "renumbered", "prompt-lookup"],
        ["padded", "noisy", RECYCLING],
        ["streaming", "ngram"],
    ):
        levels = chosen(loaded, names)
        assert levels[0].tokenizer is not None
        ids = levels[0].tokenizer.encode(PROMPTS[0])
        found, _ = speculate(Hierarchy(levels, [4]), ids, 30, (), selection)
        target = decoder_of(levels[0])
        again = by_hand(target, [*ids, *found.token_ids[:-1]], 1)
        assert len(found.token_ids) == 30
        assert found.logits[-1] == again.logits[0]


def test_padding_is_never_proposed(loaded: dict[str, LoadedLevel]) -> None:
    """The padded model on its own would choose it."""
    target, padded = chosen(loaded, ["padded"])
    assert target.tokenizer is not None
    ids = target.tokenizer.encode(PROMPTS[1])
    assert max(by_hand(decoder_of(padded), ids, 20).token_ids) >= decoder_of(target).config.vocab_size
    generation = assert_lossless(Hierarchy([target, padded], [4], [0.0]), ids, 20)
    assert (generation.trace.statistics[1].acceptance_rate or 0) > 0.9  # otherwise it is the very same model


# how levels are linked


def link(levels: list[LoadedLevel], is_adaptive: bool = False) -> Level:
    hierarchy = Hierarchy(levels, "auto" if is_adaptive else [4], [0.5])
    return hierarchy.link(hierarchy.begin().trace.statistics, GreedyAcceptance())


def test_a_fixed_pace_has_one_draft_and_an_adaptive_target_all_whose_own_are_look_ups() -> None:
    levels = [target_level(), self_draft(), noisy_copy(), look_up("prompt-lookup")]
    fixed = link(levels)
    assert [draft.statistics.name for draft in fixed.drafts] == ["mxfp4"]
    adaptive = link(levels, is_adaptive=True)
    assert [draft.statistics.name for draft in adaptive.drafts] == ["mxfp4", "noisy", "prompt-lookup"]
    below = adaptive.drafts[0]
    assert isinstance(below, ModelDraft)
    assert list(below.level.drafts) == adaptive.drafts[2:]
    assert isinstance(adaptive.drafts[2], PromptLookup)


def test_of_several_look_ups_each_is_a_draft_to_choose_from() -> None:
    levels = [target_level(), self_draft(), look_up(STAND), look_up("prompt-lookup", max_ngram=5, min_ngram=4)]
    hierarchy = Hierarchy(levels, "auto")
    assert len(hierarchy.paces) == 2  # of the target and of the 4-bit draft
    target = hierarchy.link(hierarchy.begin().trace.statistics, SELECTIONS[1].acceptance())
    below, stand, lookup = target.drafts
    assert isinstance(below, ModelDraft) and isinstance(lookup, PromptLookup)
    assert list(below.level.drafts) == [stand, lookup]
    assert stand.acceptance is target.acceptance  # type: ignore[attr-defined]
    assert (lookup.max_ngram, lookup.min_ngram) == (5, 4)
    message = (
        "hierarchy: level prompt-lookup is below the look-up stand, and with lengths that are given no level queries "
        "it. Leave it out, or use --num-draft-tokens auto."
    )
    with pytest.raises(ModelError) as caught:
        Hierarchy(levels, [3, 5, 7])
    assert str(caught.value) == message


def test_a_lookup_whose_lengths_a_manifest_has_the_wrong_way_round_is_refused() -> None:
    levels = [target_level(), look_up("prompt-lookup", max_ngram=2, min_ngram=3)]
    with pytest.raises(ModelError, match="n-grams of 3 to 2 tokens; 1 <= min_ngram <= max_ngram is required"):
        Hierarchy(levels).generate([1], 2)


@pytest.mark.parametrize("kind", ["prompt-lookup", RECYCLING])
def test_a_look_up_has_nothing_below_it(kind: str) -> None:
    with pytest.raises(ModelError) as caught:
        Hierarchy([target_level(), look_up(kind), noisy_copy()])  # type: ignore[arg-type]
    assert str(caught.value) == (
        f"hierarchy: level {KINDS[kind].name} is a look-up, and noisy is below it; only a model can use a draft. "
        "Put look-ups last."
    )


def test_the_first_level_is_a_model() -> None:
    with pytest.raises(ModelError) as caught:
        Hierarchy([look_up("prompt-lookup")])
    assert str(caught.value) == ("hierarchy: prompt-lookup is no model; the first level must be one. Name the target.")
