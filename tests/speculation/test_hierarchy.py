"""Speculation changes nothing: tokens and logits of every hierarchy are those of plain greedy decoding, bit for bit.

At the end what a hierarchy is told: levels, lengths, thresholds, prompts.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import write_tiny_llama
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_levels import (
    MAX_POSITIONS,
    VOCAB_SIZE,
    assert_lossless,
    by_hand,
    decoder_of,
    levels_of,
    noisy_copy,
    self_draft,
    target_level,
)

from mxconv.checkpoint.source import open_checkpoint
from mxconv.conversion.options import QuantizeOptions
from mxconv.convert import convert
from mxconv.drafts.loader import LoadedPackage
from mxconv.errors import ModelError
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.loaded_level import LoadedLevel
from mxconv.speculation.selection import MAX_SEED, Selection
from mxconv.text.distribution import Sampling

SHARED_MODELS = os.environ.get("MXCONV_TEST_MODELS")


PROMPT = [3, 1, 4, 1, 5, 9]


@pytest.fixture(scope="module", params=["mxfp4-F16", "bsfp-BF16", "paper-BF16"])
def package(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedPackage]:
    """A real package of three levels: tied head, nested small checkpoint with fewer positions."""
    codec, dtype = request.param.split("-")
    folder = tmp_path_factory.mktemp("package")
    source = write_tiny_llama(folder / "source", dtype=dtype, tie_word_embeddings=True)
    small = write_tiny_llama(folder / "small", seed=0, num_hidden_layers=1, max_position_embeddings=40)
    options = QuantizeOptions(
        codec="mxfp4" if codec == "mxfp4" else "bsfp",
        segments="paper" if codec == "paper" else "fitted",
        drafts=(f"checkpoint:{small}",),
    )
    with open_checkpoint(source) as checkpoint:
        convert(checkpoint, folder / "package", options)
    with LoadedPackage(folder / "package") as loaded:
        yield loaded


def test_a_converted_package_decodes_as_its_target(package: LoadedPackage) -> None:
    ids = package.tokenizer.encode("Once upon a time")
    for hierarchy in (
        Hierarchy(package.levels[:2], [1], [0.0]),
        Hierarchy(package.levels, [16, 4], [0.0, 0.1]),
        Hierarchy(package.levels),
    ):
        assert_lossless(hierarchy, ids, 30)  # beyond the small model's 40 positions


BEGINNINGS = (
    "Once upon a time",
    "One day, a little girl named Lily",
    "Tim and his dog went to the park",
    "There was a big tree",
    "Mom said to Ben",
    "The cat was sad because",
)


@pytest.mark.skipif(SHARED_MODELS is None, reason="MXCONV_TEST_MODELS is not set")
@pytest.mark.parametrize("codec", ["mxfp4", "bsfp"])
def test_a_trained_model_accepts_most_of_what_its_drafts_propose(tmp_path: Path, codec: Any) -> None:
    assert SHARED_MODELS is not None
    models = Path(SHARED_MODELS)
    options = QuantizeOptions(codec=codec, drafts=(f"checkpoint:{models / 'stories260K-bf16'}",))
    with open_checkpoint(models / "llama2xs-bf16") as checkpoint:
        convert(checkpoint, tmp_path / "package", options)
    with LoadedPackage(tmp_path / "package") as loaded:
        num_rounds, proposed, accepted = 0, np.zeros(2), np.zeros(2)
        for text in BEGINNINGS:  # one text's rate moves by a tenth when a logit moves in its last bits
            generation = assert_lossless(Hierarchy(loaded.levels), loaded.tokenizer.encode(text), 40)
            _, *drafts = generation.trace.statistics
            num_rounds += generation.trace.num_rounds
            proposed += [level.num_proposed for level in drafts]
            accepted += [level.num_accepted for level in drafts]
        assert (accepted / proposed > 0.4).all(), accepted / proposed
        assert num_rounds < 30 * len(BEGINNINGS)


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
