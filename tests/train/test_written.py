"""The target's own text: what it would write alone, whatever is written beside it."""

import numpy as np
import pytest
from tiny_levels import VOCAB_SIZE, by_hand, decoder_of, target_level

from mxconv.errors import ModelError
from mxconv.text.distribution import Sampling
from mxconv.train.written import BATCH, continuations

RNG = np.random.default_rng(3)
PROMPTS = RNG.integers(0, VOCAB_SIZE, (BATCH + 3, 5)).astype(np.int32)


def written(sampling: Sampling | None, prompts: np.ndarray = PROMPTS, seed: int = 1) -> np.ndarray:
    return np.concatenate(list(continuations(decoder_of(target_level()), prompts, 9, sampling, seed)))


def test_without_draws_it_is_greedy_decoding() -> None:
    found = written(None)
    decoder = decoder_of(target_level())
    for prompt, row in zip(PROMPTS, found, strict=True):
        assert row.tolist() == [*prompt.tolist(), *by_hand(decoder, prompt.tolist(), 9).token_ids]


def test_a_text_depends_on_seed_and_number_alone() -> None:
    sampling = Sampling(0.8)
    found = written(sampling)
    np.testing.assert_array_equal(written(sampling), found)
    np.testing.assert_array_equal(written(sampling, PROMPTS[:7]), found[:7])
    assert (written(sampling, seed=2) != found).any()
    same_prompts = written(sampling, np.repeat(PROMPTS[:1], 4, 0))
    assert len({tuple(row) for row in same_prompts.tolist()}) > 1


def test_draws_follow_the_distribution() -> None:
    """The first token after one prompt, 2,000 times: within five standard deviations everywhere."""
    decoder = decoder_of(target_level())
    prompts = np.repeat(PROMPTS[:1], 2_000, 0)
    found = np.concatenate(list(continuations(decoder, prompts, 1, Sampling(1.0), 4)))[:, -1]
    from mxconv.engine.cache import KVCache
    from mxconv.text.distribution import distribution

    shares = distribution(decoder.forward(PROMPTS[0].tolist(), KVCache(decoder.config))[-1], Sampling(1.0))
    counts = np.bincount(found, minlength=VOCAB_SIZE)
    spread = np.sqrt(2_000 * shares * (1 - shares))
    assert (np.abs(counts - 2_000 * shares) <= 5 * spread + 1).all()


def test_longer_texts_than_the_target_has_positions_are_refused() -> None:
    with pytest.raises(ModelError, match="target: texts of 55 tokens; the model has 40 positions"):
        list(continuations(decoder_of(target_level()), PROMPTS, 50, None, 0))
