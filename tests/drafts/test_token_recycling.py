"""Token recycling against a dictionary filled one row at a time."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from plug_ins import RECYCLING, plug_in_module

from mxconv.engine.tree import TreeLimits
from mxconv.errors import ModelError
from mxconv.speculation.guesses import NEGLIGIBLE
from mxconv.speculation.proposal import Proposal
from mxconv.speculation.statistics import LevelStatistics

TokenRecycling = plug_in_module(RECYCLING).TokenRecycling


def recycling(vocab_size: int, num_candidates: int = 3, confidence: float = 0.0) -> Any:
    return TokenRecycling(LevelStatistics("token-recycling"), vocab_size, num_candidates, confidence)


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits.astype(np.float64) - logits.max())
    return powers / powers.sum()


@given(
    st.integers(1, 193).flatmap(
        lambda vocab_size: st.tuples(
            st.just(vocab_size),
            st.integers(1, min(vocab_size, 9)),
            st.integers(1, 5),
            st.integers(0, 2**32),
            st.sampled_from([0, 2, 50]),
        )
    )
)
def test_candidates_are_the_first_of_a_stable_sort(case: tuple[int, int, int, int, int]) -> None:
    """Rounded logits make many equal ones, which must come in the order of their tokens."""
    vocab_size, num_candidates, num_rows, seed, steps = case
    rng = np.random.default_rng(seed)
    logits = np.round(rng.standard_normal((num_rows, vocab_size)) * steps).astype(np.float32)
    followed = rng.integers(vocab_size, size=num_rows).tolist()
    draft = recycling(vocab_size, num_candidates)
    draft.observe([0, *followed[:1]], Proposal(followed[1:]), logits)
    latest = dict(zip(followed, logits, strict=True))
    for token in range(vocab_size):
        if token in latest:
            order = sorted(range(vocab_size), key=lambda i: (-latest[token][i], i))[:num_candidates]
            able = [i for i in order if latest[token][i] >= latest[token].max() - NEGLIGIBLE]
            assert draft.candidates[token].tolist() == able + [0] * (num_candidates - len(able))
            chances, rest = np.split(draft.probabilities[token], [len(able)])
            np.testing.assert_allclose(chances, softmax(latest[token])[able], rtol=1e-4)
            assert not rest.any()
        else:
            assert not draft.probabilities[token].any()


@given(st.data())
def test_the_chain_is_that_of_a_dictionary(data: st.DataObject) -> None:
    """Through many rounds: the best follower of the last logits seen, until it was doubtful or never seen."""
    vocab_size = 6
    confidence = data.draw(st.sampled_from([0.0, 0.3, 0.6]))
    draft = recycling(vocab_size, confidence=confidence)
    best: dict[int, tuple[int, float]] = {}
    for _ in range(data.draw(st.integers(1, 5))):
        tokens = data.draw(st.lists(st.integers(0, vocab_size - 1), min_size=1, max_size=4))
        logits = data.draw(arrays(np.float32, (len(tokens), vocab_size), elements=st.integers(-4, 4).map(float)))
        draft.observe(tokens[:1], Proposal(tokens[1:]), logits)
        for token, row in zip(tokens, logits, strict=True):
            best[token] = int(row.argmax()), float(softmax(row).max())
        last = data.draw(st.integers(0, vocab_size - 1))
        num_tokens = data.draw(st.integers(0, 7))
        expected, token = [], last
        while len(expected) < num_tokens and token in best and best[token][1] >= confidence:
            token = best[token][0]
            expected.append(token)
        assert draft.propose([3, last], TreeLimits.chain(num_tokens)).tokens == expected


@pytest.mark.parametrize("num_candidates", [0, 5])
def test_a_number_of_candidates_that_is_none_is_refused(num_candidates: int) -> None:
    with pytest.raises(
        ModelError, match=f"token-recycling: {num_candidates} candidates; 1 to the vocabulary's 4 are required"
    ):
        recycling(4, num_candidates)
