"""A cache that knows its tokens; after every round the caches hold what their own models wrote."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_levels import (
    VOCAB_SIZE,
    assert_lossless,
    by_hand,
    decoder_of,
    levels_of,
    noisy_copy,
    self_draft,
    target_level,
)

from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.engine.tree import TreeLimits
from mxconv.errors import ModelError
from mxconv.speculation.acceptance import GreedyAcceptance
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.loaded_level import LoadedLevel
from mxconv.speculation.model_draft import ModelDraft
from mxconv.speculation.proposal import Draft, Proposal
from mxconv.speculation.session import Session

PROMPT = [3, 1, 4, 1, 5, 9]


@dataclass
class Watched(Draft):
    """Passes proposals on, and proves that the cache above it comes back as it was."""

    inner: Draft
    session: Session

    def __post_init__(self) -> None:
        self.statistics = self.inner.statistics

    def propose(self, context: Sequence[int], limits: TreeLimits) -> Proposal:
        before = list(self.session.tokens), cache_bytes(self.session.cache)
        proposal = self.inner.propose(context, limits)
        assert (list(self.session.tokens), cache_bytes(self.session.cache)) == before
        return proposal

    def observe(self, context: Sequence[int], proposal: Proposal, logits: np.ndarray) -> None:
        self.inner.observe(context, proposal, logits)


def cache_bytes(cache: KVCache) -> list[bytes]:
    """Every valid key and value."""
    return [
        part.tobytes()
        for layer in range(cache.config.num_hidden_layers)
        for part in cache.read(layer, range(cache.length))
    ]


def fresh_cache_bytes(decoder: Decoder, tokens: list[int]) -> list[bytes]:
    cache = KVCache(decoder.config)
    if tokens:
        decoder.forward(tokens, cache)
    return cache_bytes(cache)


@pytest.mark.parametrize(
    ("drafts", "prompt"),
    [
        ([self_draft()], [7]),
        ([self_draft(shares_cache=False)], PROMPT),
        ([self_draft(), noisy_copy(noise=0.3)], PROMPT),
        ([self_draft(), noisy_copy(noise=0.3, shares_cache=True)], [7]),
        ([noisy_copy(noise=0.1, shares_cache=True), self_draft(), noisy_copy(noise=0.0)], PROMPT),
    ],
)
def test_after_every_round_the_caches_hold_what_their_own_models_wrote(
    drafts: list[LoadedLevel], prompt: list[int]
) -> None:
    """Rounds by hand, every cache compared with one that its model fills alone."""
    levels = [target_level(), *drafts]
    hierarchy = Hierarchy(levels, [4], [0.1])
    chain = hierarchy.link(hierarchy.begin().trace.statistics, GreedyAcceptance())
    every = [chain]
    while every[-1].drafts:
        (below,) = every[-1].drafts
        assert isinstance(below, ModelDraft)
        every.append(below.level)
    if chain.drafts:  # what the target sees of its cache when its draft is done
        chain = replace(chain, drafts=[Watched(chain.drafts[0], chain.session)])
    context = list(prompt)
    truth = by_hand(decoder_of(levels[0]), prompt, 24).token_ids
    while len(context) - len(prompt) < 20:
        step = chain.round(context, 1 if len(context) == len(prompt) > 1 else 5)
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


DECODER = target_level().decoder


def session(tokens: list[int]) -> Session:
    made = Session(KVCache(DECODER.config))
    if tokens:
        made.feed(DECODER, tokens, 1)
    return made


@pytest.mark.parametrize(
    ("held", "context", "kept", "missing"),
    [
        ([], [1], 0, [1]),
        ([], [1, 2, 3], 0, [1, 2, 3]),
        ([1, 2], [1, 2, 3], 2, [3]),
        ([1, 2, 3], [1, 2, 3], 2, [3]),  # the last token's logits are wanted, so it is evaluated again
        ([1, 2, 3, 4, 5], [1, 2, 9], 2, [9]),
        ([1, 2, 3], [9, 2, 3], 0, [9, 2, 3]),
        ([1, 2, 3], [1], 0, [1]),
    ],
)
def test_aligning_keeps_the_common_prefix_but_not_the_last_token(
    held: list[int], context: list[int], kept: int, missing: list[int]
) -> None:
    ours = session(held)
    assert ours.align(context) == missing
    assert ours.tokens == context[:kept]
    assert ours.cache.length == kept


TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=12)  # few tokens, so that prefixes agree


@settings(max_examples=25, deadline=None)
@given(contexts=st.lists(TOKENS, min_size=1, max_size=6))
def test_logits_after_any_sequence_of_contexts_are_those_of_the_context_alone(contexts: list[list[int]]) -> None:
    ours = session([])
    for context in contexts:
        found = ours.feed(DECODER, ours.align(context), 1)
        assert ours.tokens == context
        assert ours.cache.length == len(context)
        assert found.tobytes() == DECODER.forward(context, KVCache(DECODER.config))[-1:].tobytes()


def test_tokens_that_are_refused_leave_the_session_as_it_was() -> None:
    ours = session([1, 2])
    with pytest.raises(ModelError, match="token id 24"):
        ours.feed(DECODER, [3, VOCAB_SIZE], 1)
    assert ours.tokens == [1, 2]
    assert ours.cache.length == 2


@given(
    st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=12),
    st.lists(st.integers(0, 3), min_size=1, max_size=12),
    st.integers(0, 12),
    st.integers(1, 80),
)
@settings(max_examples=15, deadline=None)
def test_what_was_lent_comes_back_as_it_was(held: list[int], other: list[int], shared: int, num_more: int) -> None:
    """Whatever a draft heard, and however much it wrote: longer than the cache had room for, or shorter than it was."""
    decoder = target_level(max_position_embeddings=200).decoder
    made = Session(KVCache(decoder.config, 16))
    made.feed(decoder, held, 1)
    before = [array[:, :, : len(held)].copy() for array in made.cache.arrays]
    context = [*held[:shared], *other]
    with made.borrow(context):
        made.feed(decoder, made.align(context), 1)
        for token in range(num_more):
            made.feed(decoder, [token % VOCAB_SIZE], 1)
    assert made.tokens == held
    assert made.cache.length == len(held)
    for array, kept in zip(made.cache.arrays, before, strict=True):
        np.testing.assert_array_equal(array[:, :, : len(held)], kept)


def test_what_was_lent_comes_back_after_an_error() -> None:
    made = session([1, 2, 3, 4])
    before = [array[:, :, :4].copy() for array in made.cache.arrays]
    with pytest.raises(KeyboardInterrupt), made.borrow([1, 7, 7]):
        made.feed(DECODER, made.align([1, 7, 7]), 1)
        raise KeyboardInterrupt
    assert (made.tokens, made.cache.length) == ([1, 2, 3, 4], 4)
    for array, kept in zip(made.cache.arrays, before, strict=True):
        np.testing.assert_array_equal(array[:, :, :4], kept)
