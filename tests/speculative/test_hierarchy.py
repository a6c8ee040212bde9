"""Speculation changes nothing: tokens and logits of every hierarchy are those of plain greedy decoding, bit for bit."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import write_tiny_llama
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_levels import (
    FORMATS,
    MAX_POSITIONS,
    VOCAB_SIZE,
    assert_lossless,
    decoder_of,
    greedy_by_hand,
    look_up,
    noisy_copy,
    self_draft,
    speculate,
    target_level,
)

from mxconv.checkpoint.source import open_checkpoint
from mxconv.conversion.options import QuantizeOptions
from mxconv.convert import convert
from mxconv.errors import ModelError
from mxconv.model.cache import KVCache
from mxconv.model.decoder import Decoder
from mxconv.model.loader import LoadedLevel, LoadedPackage
from mxconv.speculative import chain as chain_module
from mxconv.speculative.acceptance import Acceptance, GreedyAcceptance
from mxconv.speculative.chain import Chain
from mxconv.speculative.draft import Draft, Proposal
from mxconv.speculative.hierarchy import Hierarchy
from mxconv.speculative.level import Level
from mxconv.speculative.pacing.pace import FixedPace
from mxconv.speculative.session import Session
from mxconv.speculative.statistics import LevelStatistics

SHARED_MODELS = os.environ.get("MXCONV_TEST_MODELS")
PROMPT = [3, 1, 4, 1, 5, 9]


def levels_of(count: int, dtype: str = "BF16") -> list[LoadedLevel]:
    """Target, its 4-bit copy in the same cache, a small model with its own."""
    every = [target_level(0, FORMATS[dtype]), self_draft(0, FORMATS[dtype]), noisy_copy(0, 0.3)]
    return every[:count]


# every hierarchy is lossless


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
@pytest.mark.parametrize("num_levels", [1, 2, 3])
@pytest.mark.parametrize("confidence", [0.0, 0.5, 1.0])
def test_output_is_that_of_plain_greedy_for_every_number_of_draft_tokens(
    dtype: str, num_levels: int, confidence: float
) -> None:
    levels = levels_of(num_levels, dtype)
    for num_draft_tokens in range(1, 17):
        assert_lossless(Hierarchy(levels, [num_draft_tokens], [confidence]), PROMPT, 17)


@pytest.fixture(scope="module", params=["mxfp4-BF16", "mxfp4-F16", "bsfp-BF16", "bsfp-F16", "paper-BF16"])
def package(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedPackage]:
    """A real package of three levels: tied head, nested small checkpoint with fewer positions."""
    codec, dtype = request.param.split("-")
    folder = tmp_path_factory.mktemp("package")
    source = write_tiny_llama(folder / "source", dtype=dtype, tie_word_embeddings=True)
    small = write_tiny_llama(folder / "small", seed=0, num_hidden_layers=1, max_position_embeddings=40)
    options = QuantizeOptions(
        codec="mxfp4" if codec == "mxfp4" else "bsfp",
        segments="paper" if codec == "paper" else "fitted",
        residual_bits=10 if codec == "bsfp" and dtype == "F16" else None,
        drafts=(f"checkpoint:{small}",),
    )
    with open_checkpoint(source) as checkpoint:
        convert(checkpoint, folder / "package", options)
    with LoadedPackage(folder / "package") as loaded:
        yield loaded


@pytest.mark.parametrize(
    ("num_draft_tokens", "confidence"), [([1], [0.0]), ([4, 2], [0.5, 0.1]), ([16, 16], [0.0, 0.0]), (None, None)]
)
def test_a_converted_package_decodes_as_its_target(
    package: LoadedPackage, num_draft_tokens: list[int] | None, confidence: list[float] | None
) -> None:
    ids = package.tokenizer.encode("Once upon a time")
    for num_levels in (1, 2, 3):
        levels = package.levels[:num_levels]
        settings_fit = num_draft_tokens is None or len(num_draft_tokens) in (1, num_levels - 1)
        hierarchy = Hierarchy(levels, num_draft_tokens if settings_fit else None, confidence if settings_fit else None)
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


def test_a_draft_of_another_mind_costs_rounds_and_changes_nothing() -> None:
    generation = assert_lossless(Hierarchy([target_level(), noisy_copy(noise=10)], [4], [0.0]), PROMPT, 20)
    rate = generation.trace.statistics[1].acceptance_rate
    assert rate is not None
    assert rate < 0.5


# the ends of texts


@pytest.mark.parametrize("num_levels", [1, 2, 3])
def test_a_stop_token_ends_the_text_wherever_it_falls_in_an_accepted_run(num_levels: int) -> None:
    """A draft that is always right makes runs of five; each new token in turn is the one that stops."""
    levels = [target_level(), noisy_copy(noise=0, shares_cache=True), noisy_copy(noise=0)][:num_levels]
    whole = greedy_by_hand(decoder_of(levels[0]), PROMPT, 20).token_ids
    for stop in sorted(set(whole)):
        first = whole.index(stop)
        for num_draft_tokens in (1, 4, 16):
            hierarchy = Hierarchy(levels, [num_draft_tokens], [0.0])
            generation = assert_lossless(hierarchy, PROMPT, 20, {stop, VOCAB_SIZE + 7})
            assert generation.token_ids == whole[: first + 1]


@pytest.mark.parametrize("num_levels", [1, 2, 3])
@pytest.mark.parametrize("max_new_tokens", [1, 2, 3])
def test_no_more_tokens_come_than_were_asked_for(num_levels: int, max_new_tokens: int) -> None:
    for num_draft_tokens in (1, 16):
        generation = assert_lossless(Hierarchy(levels_of(num_levels), [num_draft_tokens]), PROMPT, max_new_tokens)
        assert len(generation.token_ids) == max_new_tokens


@pytest.mark.parametrize("num_levels", [1, 2, 3])
@pytest.mark.parametrize("length", [1, 2, MAX_POSITIONS - 2, MAX_POSITIONS - 1, MAX_POSITIONS])
def test_prompts_of_any_length_that_fits_are_continued_to_the_last_position(num_levels: int, length: int) -> None:
    prompt = [int(token) for token in np.random.default_rng(length).integers(0, VOCAB_SIZE, length)]
    for confidence in (0.0, 0.5):
        generation = assert_lossless(Hierarchy(levels_of(num_levels), [5], [confidence]), prompt, 100)
        assert len(generation.token_ids) == MAX_POSITIONS + 1 - length


@pytest.mark.parametrize("shares_cache", [False, True])
@pytest.mark.parametrize("draft_positions", [1, 2, 7, 8, 12, 100])
def test_a_draft_with_other_positions_than_the_target_falls_silent_at_its_end(
    draft_positions: int, shares_cache: bool
) -> None:
    draft = noisy_copy(noise=0.05, max_position_embeddings=draft_positions, shares_cache=shares_cache)
    assert_lossless(Hierarchy([target_level(), draft], [4], [0.0]), PROMPT, 100)
    assert_lossless(Hierarchy([target_level(), self_draft(), draft], [4], [0.0]), PROMPT, 100)
    assert_lossless(Hierarchy([target_level(), draft, self_draft()], [4], [0.0]), PROMPT, 100)


# every prompt, model and setting


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


@settings(max_examples=120, deadline=None)
@given(
    hierarchy=hierarchies(),
    prompt=st.lists(TOKENS, min_size=1, max_size=MAX_POSITIONS),
    max_new_tokens=st.integers(1, 45),
    stop_tokens=st.sets(TOKENS, max_size=3),
)
def test_any_hierarchy_decodes_any_prompt_as_its_target_alone(
    hierarchy: Hierarchy, prompt: list[int], max_new_tokens: int, stop_tokens: set[int]
) -> None:
    assert_lossless(hierarchy, prompt, max_new_tokens, stop_tokens)


def test_the_prompt_goes_through_the_target_alone_and_a_single_token_does_not_wait() -> None:
    for prompt, is_drafted in ((PROMPT, False), ([7], True)):
        trace = assert_lossless(Hierarchy(levels_of(2), [4], [0.0]), prompt, 10).trace
        assert (trace.entries[1].round, trace.entries[1].level) == (0, "mxfp4")
        assert (trace.entries[1].num_forwards > 0) == is_drafted


# drafts that are no models


@dataclass
class Fake:
    """Proposes what it was told to, and remembers what it was asked."""

    proposals: list[list[int]]
    statistics: LevelStatistics = field(default_factory=lambda: LevelStatistics("fake"))
    asked: list[tuple[list[int], int]] = field(default_factory=list)

    def propose(self, context: Sequence[int], num_tokens: int, floor: float | None = None) -> Proposal:
        self.asked.append((list(context), num_tokens))
        return Proposal(self.tokens_behind(list(context), num_tokens))

    def tokens_behind(self, context: list[int], num_tokens: int) -> list[int]:
        return list(self.proposals[len(self.asked) % len(self.proposals)]) if self.proposals else []

    def observe(self, context: Sequence[int], proposal: Proposal, logits: np.ndarray) -> None:
        """It knows everything already."""


class WithDraft(Hierarchy):
    """A target whose draft is any object with the protocol's methods."""

    def __init__(self, target: LoadedLevel, draft: Fake, num_draft_tokens: int) -> None:
        super().__init__([target, look_up("prompt-lookup")], [num_draft_tokens])
        self._chain = ChainTo(draft, self.levels, [FixedPace(num_draft_tokens)], [0.0])


class ChainTo(Chain):
    """A chain whose last level is one that was made elsewhere."""

    def __init__(self, draft: Fake, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.draft = draft

    def link(self, statistics: Sequence[LevelStatistics], acceptance: Acceptance) -> Level:
        self.draft.statistics = statistics[1]
        return replace(super().link(statistics, acceptance), drafts=[self.draft])


@settings(max_examples=60, deadline=None)
@given(
    proposals=st.lists(st.lists(TOKENS, max_size=20), max_size=5),
    num_draft_tokens=st.integers(1, 16),
    prompt=st.lists(TOKENS, min_size=1, max_size=MAX_POSITIONS),
)
def test_no_tokens_that_a_draft_proposes_change_the_text(
    proposals: list[list[int]], num_draft_tokens: int, prompt: list[int]
) -> None:
    target, draft = target_level(), Fake(proposals)
    assert_lossless(WithDraft(target, draft, num_draft_tokens), prompt, 30)
    for context, num_tokens in draft.asked:
        assert 1 <= num_tokens <= num_draft_tokens
        assert len(context) + num_tokens <= MAX_POSITIONS
        assert len(context) - len(prompt) + num_tokens < 30  # the target's own token still fits


@pytest.mark.parametrize("offset", range(6))
@pytest.mark.parametrize("intruder", [VOCAB_SIZE, VOCAB_SIZE + 1000, -1, 2**40])
def test_ids_outside_the_vocabulary_end_a_proposal(offset: int, intruder: int) -> None:
    """What is right before them is still accepted: the draft knows the text."""
    target = target_level()
    truth = greedy_by_hand(decoder_of(target), PROMPT, 20).token_ids

    class Clairvoyant(Fake):
        def tokens_behind(self, context: list[int], num_tokens: int) -> list[int]:
            done = len(context) - len(PROMPT)
            tokens = truth[done : done + num_tokens]
            return [*tokens[:offset], intruder, *tokens[offset:]]

    generation = assert_lossless(WithDraft(target, Clairvoyant([]), 5), PROMPT, 20)
    assert (generation.trace.statistics[1].num_accepted > 0) == (offset > 0)


def test_a_draft_that_proposes_the_truth_and_then_nonsense_is_believed_as_far_as_the_truth_goes() -> None:
    target = target_level()
    truth = greedy_by_hand(decoder_of(target), PROMPT, 24).token_ids

    class HalfRight(Fake):
        def tokens_behind(self, context: list[int], num_tokens: int) -> list[int]:
            done = len(context) - len(PROMPT)
            return [*truth[done : done + 2], *((token + 1) % VOCAB_SIZE for token in truth[done + 2 : done + 4])]

    generation = assert_lossless(WithDraft(target, HalfRight([]), 4), PROMPT, 22)
    assert generation.trace.num_rounds == 1 + 7  # the prompt's token, then two accepted and one of its own
    assert generation.trace.statistics[1].num_accepted == 14


# caches


@dataclass
class Watched:
    """Passes proposals on, and proves that the cache above it comes back as it was."""

    inner: Draft
    session: Session

    @property
    def statistics(self) -> LevelStatistics:
        return self.inner.statistics

    def propose(self, context: Sequence[int], num_tokens: int, floor: float | None = None) -> Proposal:
        before = list(self.session.tokens), cache_bytes(self.session.cache)
        proposal = self.inner.propose(context, num_tokens, floor)
        assert (list(self.session.tokens), cache_bytes(self.session.cache)) == before
        return proposal

    def observe(self, context: Sequence[int], proposal: Proposal, logits: np.ndarray) -> None:
        self.inner.observe(context, proposal, logits)


def cache_bytes(cache: KVCache) -> list[bytes]:
    """Every valid key and value."""
    return [part.tobytes() for layer in range(cache.num_layers) for part in cache.read(layer, range(cache.length))]


def fresh_cache_bytes(decoder: Decoder, tokens: list[int]) -> list[bytes]:
    cache = KVCache(decoder.config)
    if tokens:
        decoder.forward(tokens, cache)
    return cache_bytes(cache)


@pytest.mark.parametrize("prompt", [PROMPT, [7]])
@pytest.mark.parametrize(
    "drafts",
    [
        [self_draft()],
        [self_draft(shares_cache=False)],
        [self_draft(), noisy_copy(noise=0.3)],
        [self_draft(), noisy_copy(noise=0.3, shares_cache=True)],
        [noisy_copy(noise=0.1), self_draft()],
        [noisy_copy(noise=0.1, shares_cache=True), self_draft(), noisy_copy(noise=0.0)],
    ],
    ids=lambda drafts: " ".join(f"{level.name}{'+' if level.shares_cache else ''}" for level in drafts),
)
def test_after_every_round_the_caches_hold_what_their_own_models_wrote(
    drafts: list[LoadedLevel], prompt: list[int]
) -> None:
    check_caches(drafts, prompt)


def check_caches(drafts: list[LoadedLevel], prompt: list[int]) -> None:
    """Rounds by hand, every cache compared with one that its model fills alone."""
    levels = [target_level(), *drafts]
    hierarchy = Hierarchy(levels, [4], [0.1])
    chain = hierarchy._chain.link(hierarchy.begin().trace.statistics, GreedyAcceptance())
    every = [chain]
    while every[-1].drafts:
        (below,) = every[-1].drafts
        assert isinstance(below, Level)
        every.append(below)
    if chain.drafts:  # what the target sees of its cache when its draft is done
        chain = replace(chain, drafts=[Watched(every[1], chain.session)])
    context = list(prompt)
    truth = greedy_by_hand(decoder_of(levels[0]), prompt, 24).token_ids
    while len(context) - len(prompt) < 20:
        step = chain.step(context, 1 if len(context) == len(prompt) > 1 else 5)
        context += step.tokens
        assert context[len(prompt) :] == truth[: len(context) - len(prompt)]
        assert chain.session.tokens == context[:-1]
        assert cache_bytes(chain.session.cache) == fresh_cache_bytes(decoder_of(levels[0]), context[:-1])
        for level in every[1:]:
            assert level.session.cache.length == len(level.session.tokens)
            if level.session is not chain.session and level.session.tokens:
                assert not level.shares_session
                own = fresh_cache_bytes(level.decoder, level.session.tokens)
                assert cache_bytes(level.session.cache) == own


def test_a_generation_begins_with_fresh_caches_and_fresh_numbers() -> None:
    hierarchy = Hierarchy(levels_of(3), [4], [0.2])
    first = assert_lossless(hierarchy, PROMPT, 20)
    assert_lossless(hierarchy, [2, 2, 2], 20)
    again = assert_lossless(hierarchy, PROMPT, 20)
    counts = [
        [(level.num_forwards, level.num_proposed, level.num_accepted) for level in generation.trace.statistics]
        for generation in (first, again)
    ]
    assert counts[0] == counts[1]


# these tests can fail


class AcceptsOneTooMany(Level):
    """The classic mistake: the first rejected token slips through."""

    def _verify(self, context: Sequence[int], proposal: Proposal) -> Any:
        step, num_evaluated = super()._verify(context, proposal)
        num_accepted = len(step.tokens) - 1
        if num_accepted < len(proposal.tokens):
            step.tokens[-1] = proposal.tokens[num_accepted]
        return step, num_evaluated


def keep_rejected_keys(session: Session, start: int, rows: Sequence[int]) -> None:
    """Another: only the names of the rejected tokens are taken back, their keys and values stay."""
    del session.tokens[start + len(rows) :]


class LeavesDraftKeys(Level):
    """And: a draft leaves its keys in the cache that it shares."""

    def propose(self, context: Sequence[int], num_tokens: int, floor: float | None = None) -> Proposal:
        return Level.propose(replace(self, shares_session=False), context, num_tokens, floor)


def test_a_level_that_accepts_one_token_too_many_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain_module, "Level", AcceptsOneTooMany)
    with pytest.raises(AssertionError):
        assert_lossless(Hierarchy([target_level(), self_draft()], [4], [0.0]), PROMPT, 20)


def test_a_session_that_keeps_rejected_keys_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "keep", keep_rejected_keys)
    monkeypatch.setattr(Session, "rewind", lambda session, length: keep_rejected_keys(session, length, []))
    with pytest.raises(AssertionError):
        assert_lossless(Hierarchy([target_level(), noisy_copy(noise=10)], [4], [0.0]), PROMPT, 8)


def test_a_draft_that_leaves_its_keys_in_the_shared_cache_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    check_caches([self_draft()], PROMPT)
    monkeypatch.setattr(chain_module, "Level", LeavesDraftKeys)
    with pytest.raises(AssertionError):
        check_caches([self_draft()], PROMPT)


# refusals


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
@pytest.mark.parametrize("num_levels", [1, 2, 3])
def test_prompts_that_cannot_be_continued_are_refused(case: str, num_levels: int) -> None:
    prompt, max_new_tokens, message = REFUSED[case]
    with pytest.raises(ModelError, match=message):
        Hierarchy(levels_of(num_levels)).generate(prompt, max_new_tokens)


def test_speed_is_tokens_over_seconds() -> None:
    _, generation = speculate(Hierarchy(levels_of(1)), PROMPT, 4)
    assert generation.tokens_per_second == 4 / generation.seconds
