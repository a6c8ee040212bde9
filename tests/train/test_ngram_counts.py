"""Counts against a Counter, and what is left where memory is short."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mxconv.train import ngram_counts
from mxconv.train.ngram_counts import NgramCounts


@pytest.fixture(scope="module", autouse=True)
def small_buffer() -> object:
    """So that batches are merged often."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ngram_counts, "BUFFERED", 4)
        yield


batches = st.lists(st.lists(st.integers(0, 9) | st.just(2**63 - 1), max_size=8), max_size=12)


@given(batches)
def test_counts_are_those_of_a_counter(numbers: list[list[int]]) -> None:
    counts, expected = NgramCounts(max_held=100), Counter[int]()
    for batch in numbers:
        counts.add(np.array(batch, np.uint64))
        expected.update(batch)
    keys, found = counts.sorted()
    assert list(zip(keys.tolist(), found.tolist(), strict=True)) == sorted(expected.items())
    assert counts.num_pruned == 0


@given(batches, st.integers(1, 5))
def test_no_more_than_may_be_held_are_and_none_is_counted_too_often(numbers: list[list[int]], max_held: int) -> None:
    counts, expected = NgramCounts(max_held), Counter[int]()
    for batch in numbers:
        counts.add(np.array(batch, np.uint64))
        expected.update(batch)
    keys, found = counts.sorted()
    assert len(keys) <= max_held
    assert (np.diff(keys.astype(object)) > 0).all()
    assert all(0 < count <= expected[key] for key, count in zip(keys.tolist(), found.tolist(), strict=True))
    assert (counts.num_pruned == 0) == (found.sum() == sum(expected.values()))


def test_the_rarest_are_dropped() -> None:
    counts = NgramCounts(max_held=4)
    counts.add(np.array([1] * 5 + [2] * 4 + [3] * 3 + [4, 4, 5, 6], np.uint64))
    keys, found = counts.sorted()
    assert (keys.tolist(), found.tolist()) == ([1, 2], [5, 4])
    assert counts.num_pruned == 4
