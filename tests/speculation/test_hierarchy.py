"""Speculation changes nothing: tokens and logits of every hierarchy are those of plain greedy decoding, bit for bit.

At the end what a hierarchy is told: levels, lengths, thresholds, prompts.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ngram_tables import write_table
from plug_ins import PAPERS, RECYCLING, STAND
from tiny_levels import (
    MAX_POSITIONS,
    VOCAB_SIZE,
    assert_lossless,
    by_hand,
    decoder_of,
    levels_of,
    look_up,
    noisy_copy,
    self_draft,
    speculate,
    target_level,
)

from mxconv.errors import ModelError
from mxconv.package.ngram_table import read_ngram_table
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.loaded_level import LoadedLevel
from mxconv.speculation.selection import GREEDY, MAX_SEED, Selection
from mxconv.text.distribution import Penalties, Sampling

PROMPT = [3, 1, 4, 1, 5, 9]


def test_the_target_as_its_own_draft_is_always_right() -> None:
    target = target_level()
    for copy in (noisy_copy(noise=0, shares_cache=False), noisy_copy(noise=0, shares_cache=True)):
        generation = assert_lossless(Hierarchy([target, copy], [4], [0.0]), PROMPT, 21)
        assert generation.trace.statistics[1].acceptance_rate == 1.0
        assert generation.trace.num_rounds == 1 + 4  # the prompt's token, then five a round


@pytest.mark.parametrize("num_levels", [1, 3])
def test_a_stop_token_ends_the_text_wherever_it_falls_in_an_accepted_run(num_levels: int) -> None:
    """A draft that is always right makes runs of five; each new token in turn is the one that stops."""
    levels = [target_level(), noisy_copy(noise=0, shares_cache=True), noisy_copy(noise=0)][:num_levels]
    whole = by_hand(decoder_of(levels[0]), PROMPT, 20).token_ids
    for stop in sorted(set(whole)):
        first = whole.index(stop)
        for num_draft_tokens in (1, 4):
            hierarchy = Hierarchy(levels, [num_draft_tokens], [0.0])
            generation = assert_lossless(hierarchy, PROMPT, 20, {stop, VOCAB_SIZE + 7})
            assert generation.token_ids == whole[: first + 1]


@pytest.mark.parametrize("length", [1, 2, MAX_POSITIONS - 2, MAX_POSITIONS - 1, MAX_POSITIONS])
def test_prompts_of_any_length_that_fits_are_continued_to_the_last_position(length: int) -> None:
    prompt = [int(token) for token in np.random.default_rng(length).integers(0, VOCAB_SIZE, length)]
    for num_levels, confidence in ((1, 0.0), (2, 0.5), (3, 0.0)):
        generation = assert_lossless(Hierarchy(levels_of(num_levels), [5], [confidence]), prompt, 100)
        assert len(generation.token_ids) == MAX_POSITIONS + 1 - length


@st.composite
def hierarchies(draw: st.DrawFn) -> Hierarchy:
    seed = draw(st.integers(0, 50))
    levels = [target_level(seed)]
    for _ in range(draw(st.integers(0, 3))):
        shares_cache = draw(st.booleans())
        if draw(st.booleans()):
            levels.append(self_draft(seed, shares_cache=shares_cache))
        else:
            noise = draw(st.sampled_from([0.0, 0.1, 0.5, 10.0]))
            num_layers = 2 if shares_cache else draw(st.integers(1, 2))  # one cache has one number of layers
            positions = draw(st.sampled_from([5, 20, MAX_POSITIONS, 60]))
            levels.append(
                noisy_copy(seed, noise, shares_cache, num_layers=num_layers, max_position_embeddings=positions)
            )
    count = len(levels) - 1
    num_draft_tokens = draw(st.lists(st.integers(1, 16), min_size=count, max_size=count))
    confidence = draw(st.lists(st.floats(0, 1), min_size=count, max_size=count))
    return Hierarchy(levels, num_draft_tokens, confidence)


TOKENS = st.integers(0, VOCAB_SIZE - 1)


@settings(max_examples=35, deadline=None)
@given(
    hierarchy=hierarchies(),
    prompt=st.lists(TOKENS, min_size=1, max_size=MAX_POSITIONS),
    max_new_tokens=st.integers(1, 45),
    stop_tokens=st.sets(TOKENS, max_size=3),
    sampling=st.none() | st.builds(Sampling, st.floats(0.2, 3), st.integers(0, 30), st.floats(0, 1)),
    seed=st.integers(0, MAX_SEED),
)
def test_any_hierarchy_decodes_any_prompt_as_its_target_alone(
    hierarchy: Hierarchy,
    prompt: list[int],
    max_new_tokens: int,
    stop_tokens: set[int],
    sampling: Sampling | None,
    seed: int,
) -> None:
    assert_lossless(hierarchy, prompt, max_new_tokens, stop_tokens, Selection(sampling, "coupled", seed))


def test_the_prompt_goes_through_the_target_alone_and_a_single_token_does_not_wait() -> None:
    for prompt, is_drafted in ((PROMPT, False), ([7], True)):
        trace = assert_lossless(Hierarchy(levels_of(2), [4], [0.0]), prompt, 10).trace
        assert (trace.entries[1].round, trace.entries[1].level) == (0, "mxfp4")
        assert (trace.entries[1].num_forwards > 0) == is_drafted


def test_a_hierarchy_needs_a_target() -> None:
    with pytest.raises(ModelError, match=r"^hierarchy: 0 levels; at least a target is required\.$"):
        Hierarchy([])


@pytest.mark.parametrize("flag", ["--num-draft-tokens", "--confidence"])
def test_settings_are_one_for_all_drafts_or_one_each(flag: str) -> None:
    name = flag[2:].replace("-", "_")
    levels = levels_of(3)
    for numbers in ([1], [1, 1]):
        assert len(getattr(Hierarchy(levels, **{name: numbers}), name)) == 2
    message = f"^{flag}: 3 numbers for 2 draft levels; one for all, or one each, is required.$"
    with pytest.raises(ModelError, match=message):
        Hierarchy(levels, **{name: [1, 1, 1]})
    assert getattr(Hierarchy(levels[:1], **{name: [1]}), name) == []
    with pytest.raises(ModelError, match=f"^{flag}: 2 numbers for 0 draft levels"):
        Hierarchy(levels[:1], **{name: [1, 1]})


def test_settings_come_from_the_manifest_or_else_from_the_defaults() -> None:
    target, draft, small = levels_of(3)
    chosen = draft.record.model_copy(update={"num_draft_tokens": 3, "confidence": 0.0})
    hierarchy = Hierarchy([target, LoadedLevel(chosen, draft.decoder), small])
    assert hierarchy.num_draft_tokens == [3, 8]
    assert hierarchy.confidence == [0.0, 0.4]


REFUSED = {
    "no prompt": ([], 5, r"^prompt: 0 tokens; at least one is required\. Give a text\.$"),
    "a prompt that is too long": (
        [1] * (MAX_POSITIONS + 1),
        5,
        r"^prompt: 41 tokens; the target has 40 positions \(max_position_embeddings\)\. Shorten it\.$",
    ),
    "no tokens wanted": (PROMPT, 0, r"^max_new_tokens: 0; at least 1 is required\.$"),
    "a token the target does not know": ([VOCAB_SIZE], 5, "token id 24; ids from 0 to 23 are required"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_prompts_that_cannot_be_continued_are_refused(case: str) -> None:
    prompt, max_new_tokens, message = REFUSED[case]
    with pytest.raises(ModelError, match=message):
        Hierarchy(levels_of(2)).generate(prompt, max_new_tokens)


# ---- every kind of draft, in chains and trees ----

PENALTIES = Penalties(1.2, 0.4, 0.3, ((7, 3.0), (11, -5.0)))
SELECTIONS = (
    GREEDY,
    Selection(Sampling(0.8, top_p=0.95), "coupled", 7),
    Selection(Sampling(1.5, top_k=9), "coupled", MAX_SEED),
    Selection(penalties=PENALTIES),
    Selection(Sampling(0.8, min_p=0.02), seed=5, penalties=PENALTIES),
)
PROMPTS = ([1, 2, 3, 1, 2, 3, 1, 2], [5])
DRAFTS = {
    "copy": [self_draft()],
    "copy with a cache of its own": [self_draft(shares_cache=False)],
    "copy and model": [self_draft(), noisy_copy()],
    "three models": [self_draft(), noisy_copy(noise=0.3), noisy_copy(noise=1.0, name="noisier")],
    "copy, model and look-up": [self_draft(), noisy_copy(name="small"), look_up("prompt-lookup")],
    "model and look-up": [noisy_copy(), look_up(RECYCLING)],
    "prompt-lookup": [look_up("prompt-lookup")],
    "ngram": [look_up("ngram")],
    "recycling": [look_up(RECYCLING)],
    "stand": [look_up(STAND)],
    "merged": [look_up(f"{PAPERS / 'rasd.py'}:MergedKind")],
}


@pytest.mark.parametrize("tree", ["chain", 3, 12, 63, "auto"])
@pytest.mark.parametrize("name", DRAFTS)
def test_tokens_and_logits_are_the_targets(name: str, tree: int | str, tmp_path: Path) -> None:
    levels = [target_level(), *DRAFTS[name]]
    if name == "ngram":
        table = read_ngram_table(write_table(tmp_path / "table", "0" * 64, vocab_size=VOCAB_SIZE))
        levels[1] = replace(levels[1], table=table)
    lengths, confidence = ("auto", None) if tree == "auto" else ([4], [0.0])
    hierarchy = Hierarchy(levels, lengths, confidence, tree)  # type: ignore[arg-type]
    num_nodes = num_proposed = 0
    for selection in SELECTIONS:
        for prompt in PROMPTS:
            found, generation = speculate(hierarchy, prompt, 24, (), selection)
            assert found == by_hand(decoder_of(levels[0]), prompt, 24, (), selection)
            num_nodes += generation.trace.statistics[1].num_nodes
            num_proposed += generation.trace.statistics[1].num_proposed
    assert tree == "auto" or num_proposed > 0
    assert num_nodes > num_proposed or tree in ("chain", 3, "auto") or name == "prompt-lookup"  # trees, not chains


def test_penalties_choose_other_tokens() -> None:
    texts = [by_hand(decoder_of(target_level()), PROMPTS[0], 24, (), selection) for selection in SELECTIONS]
    assert texts[3].token_ids != texts[0].token_ids
