"""A cache that knows its tokens."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_levels import VOCAB_SIZE, target_level

from mxconv.engine.cache import KVCache
from mxconv.errors import ModelError
from mxconv.speculation.session import Session

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


def test_feeding_returns_the_logits_of_the_last_tokens() -> None:
    tokens = [5, 6, 7, 8]
    every = DECODER.forward(tokens, KVCache(DECODER.config))
    for num_logits in (1, 2, 4):
        ours = session([])
        assert ours.feed(DECODER, tokens, num_logits).tobytes() == every[-num_logits:].tobytes()


def test_tokens_that_are_refused_leave_the_session_as_it_was() -> None:
    ours = session([1, 2])
    with pytest.raises(ModelError, match="token id 24"):
        ours.feed(DECODER, [3, VOCAB_SIZE], 1)
    assert ours.tokens == [1, 2]
    assert ours.cache.length == 2


def test_rewinding_further_than_there_are_tokens_is_refused() -> None:
    ours = session([1, 2])
    with pytest.raises(ModelError, match=r"^KV cache: truncation to 3 positions; 0 to 2 are there\."):
        ours.rewind(3)
    assert np.array_equal(ours.tokens, [1, 2])


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
