"""Sampling distributions and penalties, against the warpers and processors of transformers."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from mxconv.arrays import F32, F64
from mxconv.errors import ModelError
from mxconv.speculation.path_rules import PathPenalties, PathRules
from mxconv.text.distribution import Penalties, Sampling, distribution, greedy, penalized

ROWS = arrays(np.float32, st.integers(1, 40), elements=st.floats(-30, 30, width=32) | st.just(-np.inf)).filter(
    lambda row: np.isfinite(row).any()
)
SAMPLINGS = st.builds(
    Sampling,
    temperature=st.floats(0.1, 8),
    top_k=st.integers(0, 50),
    top_p=st.floats(0, 1),
    min_p=st.sampled_from([0.0, 0.05, 0.3]),
)


def by_transformers(logits: F32, sampling: Sampling) -> F64:
    """The warpers one after the other, in float64, so that rounding moves no edge."""
    scores = torch.from_numpy(logits.astype(np.float64))[None]
    ids = torch.zeros((1, 0), dtype=torch.int64)
    scores = TemperatureLogitsWarper(float(sampling.temperature))(ids, scores)
    if sampling.top_k:
        scores = TopKLogitsWarper(sampling.top_k)(ids, scores)
    if sampling.top_p < 1:
        scores = TopPLogitsWarper(sampling.top_p)(ids, scores)
    if sampling.min_p:
        scores = MinPLogitsWarper(sampling.min_p)(ids, scores)
    result: F64 = scores.softmax(-1)[0].numpy()
    return result


def assert_as_by_transformers(logits: F32, sampling: Sampling) -> None:
    """Equal but for which of equally likely tokens stay, and for a token at the very edge of top_p."""
    found, expected = distribution(logits, sampling), by_transformers(logits, sampling)
    assert found.shape == logits.shape
    np.testing.assert_allclose(found.sum(), 1, rtol=1e-12)
    # compared by falling probability, ties are interchangeable
    ours, theirs = np.sort(found)[::-1], np.sort(expected)[::-1]
    whole = distribution(logits, Sampling(sampling.temperature, sampling.top_k))
    if (ours > 0).sum() != (theirs > 0).sum():
        sums = np.cumsum(np.sort(whole)[::-1])
        assert np.abs(sums - sampling.top_p).min() < 1e-12
        return
    np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-300)
    differing = whole[(found > 0) != (expected > 0)]
    assert differing.size == 0 or np.ptp(differing) < 1e-12


@settings(max_examples=60, deadline=None)
@given(ROWS, SAMPLINGS)
@example(np.zeros(5, np.float32), Sampling(1.0, 2, 0.5))
@example(np.array([0, -np.inf, 3], np.float32), Sampling(0.5, 3, 0.99))
def test_distributions_are_those_of_transformers(logits: F32, sampling: Sampling) -> None:
    assert_as_by_transformers(logits, sampling)


@pytest.mark.parametrize("spread", [0.01, 5.0])
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(0.7, top_p=0.9),
        Sampling(1.3, top_k=50),
        Sampling(1.0, 1000, 0.95, 0.02),
        Sampling(top_p=0.9999),
    ],
)
def test_large_vocabularies_too_sharp_or_flat(spread: float, sampling: Sampling) -> None:
    logits = (np.random.default_rng(5).standard_normal(152_064) * spread).astype(np.float32)
    logits[151_936:] = -np.inf
    assert_as_by_transformers(logits, sampling)
    assert not distribution(logits, sampling)[151_936:].any()


def test_top_k_keeps_whatever_equals_the_last_of_them() -> None:
    logits = np.array([2, 5, 2, 1, 2], np.float32)
    assert np.flatnonzero(distribution(logits, Sampling(top_k=2))).tolist() == [0, 1, 2, 4]


def test_top_p_keeps_the_lowest_ids_among_equals() -> None:
    assert np.flatnonzero(distribution(np.zeros(8, np.float32), Sampling(top_p=0.5))).tolist() == [0, 1, 2, 3]
    wide = np.zeros(5000, np.float32)
    assert np.flatnonzero(distribution(wide, Sampling(top_p=0.25))).tolist() == list(range(1250))


@given(ROWS)
def test_the_least_top_p_and_the_least_temperature_leave_the_greedy_choice(logits: F32) -> None:
    assert np.flatnonzero(distribution(logits, Sampling(top_p=0.0))).tolist() == [int(greedy(logits))]
    coldest = distribution(logits, Sampling(temperature=5e-324))
    assert set(np.flatnonzero(coldest)) == set(np.flatnonzero(logits == logits.max()))


@pytest.mark.parametrize(
    ("logits", "expected"),
    [
        ([3.4e38, -3.4e38, -np.inf], [1, 0, 0]),
        ([-3.4e38, -np.inf, -np.inf], [1, 0, 0]),
        ([-3.4e38, -3.4e38, -np.inf], [0.5, 0.5, 0]),
    ],
)
@pytest.mark.parametrize("temperature", [1e-300, 1.0, 1e300])
def test_huge_logits_are_no_trouble(logits: list[float], expected: list[float], temperature: float) -> None:
    for sampling in (Sampling(temperature), Sampling(temperature, 2), Sampling(temperature, top_p=0.999)):
        found = distribution(np.array(logits, np.float32), sampling)
        if temperature < 1e300 or expected[0] == 0.5:
            assert found.tolist() == expected
        else:  # hot enough to make the first two equal
            assert not np.isnan(found).any()


def test_the_bits_depend_on_the_row_alone() -> None:
    rows = np.random.default_rng(3).standard_normal((7, 1001)).astype(np.float32)
    columns = np.asfortranarray(rows)
    for sampling in (Sampling(0.8), Sampling(0.8, 40, 0.9), Sampling(1.5, 0, 0.7)):
        for index, row in enumerate(rows):
            bits = distribution(row.copy(), sampling).tobytes()
            assert distribution(rows[index], sampling).tobytes() == bits
            assert distribution(columns[index], sampling).tobytes() == bits


@pytest.mark.parametrize(
    ("logits", "found"), [([-np.inf] * 3, "-inf"), ([0, np.nan, 1], "nan"), ([0, np.inf, -np.inf], "inf")]
)
def test_rows_that_are_no_distribution_are_refused(logits: list[float], found: str) -> None:
    message = f"logits: the largest of 3 is {found}; a finite one is required to draw a token. Check the weights"
    for sampling in (Sampling(), Sampling(1.0, 2, 0.5)):
        with pytest.raises(ModelError, match=message):
            distribution(np.array(logits, np.float32), sampling)


@pytest.mark.parametrize(
    ("name", "values", "required"),
    [
        ("temperature", [0, -1.0, np.inf, np.nan, True, "1"], "a finite number above 0 is required. Decode greedily"),
        ("top_k", [-1, 1.5, True, None], "a whole number is required, 0 for all tokens"),
        ("top_p", [-0.1, 1.1, np.nan, True, None], "a number from 0 to 1 is required, 1 for all tokens"),
        ("min_p", [-0.1, 1.1, np.nan, True, None], "a number from 0 to 1 is required, 0 for all tokens"),
    ],
)
def test_values_out_of_range_are_refused(name: str, values: list[Any], required: str) -> None:
    for value in values:
        with pytest.raises(ModelError, match=f"{name}: .*; {required}"):
            Sampling(**{name: value})


def test_greedy_takes_the_most_likely_token_of_each_position_and_the_lowest_id_among_equals() -> None:
    assert greedy(np.array([[0, 2, 1], [5, -1, 4]], np.float32)).tolist() == [1, 0]
    assert greedy(np.array([-1, 3, 3, 0, 3], np.float32)) == 1


# ---- penalties ----

NUM_PATHS = 200


def random_logits(random: np.random.Generator, number: int, vocab_size: int) -> F32:
    """Of every kind: plain ones, many ties, extremes, and tokens that cannot be."""
    logits = (random.standard_normal(vocab_size) * random.choice([0.5, 4, 30])).astype(np.float32)
    if number % 4 == 1:
        logits = np.round(logits)
    if number % 4 == 2:
        logits[random.integers(0, vocab_size, 5)] = [1e30, -1e30, 0.0, -0.0, 3e4]
    if number % 4 == 3:
        logits[random.integers(0, vocab_size, vocab_size // 3)] = -np.inf
        logits[number % vocab_size] = 1.0
    return logits


def random_penalties(random: np.random.Generator, vocab_size: int) -> Penalties:
    some = random.permutation(vocab_size)[: random.integers(0, 6)].tolist()
    return Penalties(
        float(random.choice([1.0, 0.7, 1.1, 1.9])),
        float(random.choice([0.0, -1.5, 0.3, 2.0])),
        float(random.choice([0.0, -0.4, 0.1, 2.0])),
        tuple((token, float(random.uniform(-100, 100))) for token in some),
    )


def as_expected(logits: F32, penalties: Penalties, prompt: list[int], answer: list[int]) -> torch.Tensor:
    """transformers' processors for what it has, and OpenAI's sentence for presence and frequency, in float32."""
    ids, scores = torch.tensor([[*prompt, *answer]]), torch.from_numpy(logits.copy())[None]
    if penalties.logit_bias:
        biases = {(token,): bias for token, bias in penalties.logit_bias}
        scores = SequenceBiasLogitsProcessor(biases)(ids, scores)
    if penalties.repetition != 1:
        scores = RepetitionPenaltyLogitsProcessor(penalties.repetition)(ids, scores)
    for token, count in Counter(answer).items():
        scores[0, token] = scores[0, token] - np.float32(penalties.frequency) * np.float32(count)
        scores[0, token] = scores[0, token] - np.float32(penalties.presence)
    return scores


@pytest.mark.parametrize("vocab_size", [512, 50_257])
def test_every_path_has_the_logits_of_transformers(vocab_size: int) -> None:
    random = np.random.default_rng(vocab_size)
    for number in range(NUM_PATHS):
        logits, penalties = random_logits(random, number, vocab_size), random_penalties(random, vocab_size)
        often = random.integers(0, vocab_size, 12)  # so that tokens come again
        text = np.where(random.random(60) < 0.5, random.choice(often, 60), random.integers(0, vocab_size, 60)).tolist()
        cut = int(random.integers(1, 60))
        counts = PathRules(PathPenalties(penalties, cut))
        tail = int(random.integers(cut, 61))
        found = counts.row(logits, text[:tail], text[tail:])
        scores = as_expected(logits, penalties, text[:cut], text[cut:])
        np.testing.assert_array_equal(found, scores[0].numpy())  # bit for bit, so the greedy token is theirs too


def test_counts_follow_a_path_to_any_other() -> None:
    """Up and down a tree, to longer contexts and back to shorter ones: always what a fresh count gives."""
    random, penalties = np.random.default_rng(3), Penalties(1.3, 0.5, 0.25)
    logits = random.standard_normal(16).astype(np.float32)
    counts, context = PathRules(PathPenalties(penalties, 4)), [1, 2, 3, 4]
    for step in range(300):
        if step % 3 == 0:
            context += random.integers(0, 16, 2).tolist()  # as a text grows, in place
        if step % 7 == 0:
            context = context[: int(random.integers(4, len(context) + 1))]
        if step % 11 == 0:
            context = [*context[:4], *random.integers(0, 16, len(context) - 4).tolist()]
        tail = random.integers(0, 16, int(random.integers(0, 5))).tolist()
        expected = PathRules(PathPenalties(penalties, 4)).row(logits, [*context, *tail])
        np.testing.assert_array_equal(counts.row(logits, context, tail), expected)


def test_a_draft_with_fewer_tokens_hears_what_there_is_of_them() -> None:
    counts = PathRules(PathPenalties(Penalties(2.0, logit_bias=((1, 5.0), (9, 5.0))), 3))
    np.testing.assert_array_equal(counts.row(np.ones(3, np.float32), [0, 7, 9]), [0.5, 6.0, 1.0])


def test_logits_of_the_model_stay_as_they_are() -> None:
    logits = np.ones(3, np.float32)
    tokens, once = np.array([1]), np.array([1], np.int32)
    np.testing.assert_array_equal(penalized(logits, Penalties(frequency=0.5), tokens, once, once), [1, 0.5, 1])
    np.testing.assert_array_equal(logits, 1)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"repetition": 0.0}, "repetition_penalty: 0.0; a number from 0.001 to 1000 is required"),
        ({"repetition": float("nan")}, "repetition_penalty: nan; a number from"),
        ({"repetition": True}, "repetition_penalty: True; a number from"),
        ({"presence": float("inf")}, "presence_penalty: inf; a finite number is required, 0 for none"),
        ({"frequency": "1"}, "frequency_penalty: '1'; a finite number is required, 0 for none"),
        ({"logit_bias": ((3, 101.0),)}, "logit_bias: 101.0 for token id 3; a number from -100 to 100 is required"),
        ({"logit_bias": ((3, float("nan")),)}, "logit_bias: nan for token id 3; a number from -100 to 100"),
    ],
)
def test_penalties_out_of_range_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        Penalties(**values)  # type: ignore[arg-type]


def test_a_bias_is_on_a_token_of_the_vocabulary() -> None:
    Penalties(logit_bias=((7, 1.0),)).check(8)
    with pytest.raises(ModelError, match="logit_bias: token id 8; ids from 0 to 7 are required"):
        Penalties(logit_bias=((8, 1.0),)).check(8)
