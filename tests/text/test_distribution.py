"""Sampling distributions, against the warpers of transformers."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from mxconv.arrays import F32, F64
from mxconv.errors import ModelError
from mxconv.text.distribution import Sampling, distribution, greedy

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
