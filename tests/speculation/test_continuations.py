"""The target's own text: what it would write alone, whatever is written beside it."""

import numpy as np
import pytest
from tiny_levels import VOCAB_SIZE, by_hand, decoder_of, target_level

from mxconv.errors import ModelError
from mxconv.speculation.continuations import continuations
from mxconv.text.distribution import Sampling

RNG = np.random.default_rng(3)
PROMPTS = RNG.integers(0, VOCAB_SIZE, (11, 5)).tolist()


def written(sampling: Sampling | None, prompts: list[list[int]] = PROMPTS, seed: int = 1) -> list[list[int]]:
    return list(continuations(decoder_of(target_level()), prompts, 9, sampling, seed, batch=4))


def test_without_draws_it_is_greedy_decoding() -> None:
    found = written(None)
    decoder = decoder_of(target_level())
    for prompt, row in zip(PROMPTS, found, strict=True):
        assert row == [*prompt, *by_hand(decoder, prompt, 9).token_ids]


def test_a_text_depends_on_seed_and_number_alone() -> None:
    sampling = Sampling(0.8)
    found = written(sampling)
    assert written(sampling) == found
    assert written(sampling, PROMPTS[:7]) == found[:7]
    assert written(sampling, seed=2) != found
    assert len({tuple(row) for row in written(sampling, PROMPTS[:1] * 4)}) > 1


def test_longer_texts_than_the_target_has_positions_are_refused() -> None:
    with pytest.raises(ModelError, match="target: texts of 55 tokens; the model has 40 positions"):
        list(continuations(decoder_of(target_level()), PROMPTS, 50, None, 0))


def test_texts_end_where_the_model_ends_them_and_others_go_on() -> None:
    whole = written(None)
    end = whole[0][7]
    mixed = [*PROMPTS[:4], *(prompt[:3] for prompt in PROMPTS[:4])]
    found = list(continuations(decoder_of(target_level()), mixed, 9, ends={end}, batch=3))
    alone = [next(continuations(decoder_of(target_level()), [prompt], 9)) for prompt in mixed]
    for prompt, ours, theirs in zip(mixed, found, alone, strict=True):
        stop = next((i + 1 for i in range(len(prompt), len(theirs)) if theirs[i] == end), len(theirs))
        assert ours == theirs[:stop]
    assert len(found[0]) <= 8 < len(whole[0])
