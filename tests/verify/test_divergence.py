"""Scores of distributions, beside torch's."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from mxconv.verification.divergence import CHUNK_ROWS, TokenScores, divergence, log_softmax

torch = pytest.importorskip("torch", reason="the oracle")

RANDOM = np.random.default_rng(0)
NUM_TOKENS = 2 * CHUNK_ROWS + 7  # more than a chunk, and no whole number of them


def scored(target: np.ndarray, logits: np.ndarray, tokens: np.ndarray) -> TokenScores:
    scores = TokenScores()
    scores.add(target, logits, tokens)
    return scores


def test_figures_are_torchs() -> None:
    target, logits = (RANDOM.normal(0, 3, (NUM_TOKENS, 50)).astype(np.float32) for _ in range(2))
    tokens = RANDOM.integers(0, 50, NUM_TOKENS)
    found = scored(target, logits, tokens).quality("draft")
    p, q = (torch.log_softmax(torch.tensor(x, dtype=torch.float64), -1) for x in (target, logits))
    nll = torch.nn.functional.nll_loss(q, torch.tensor(tokens), reduction="none")
    kl = torch.nn.functional.kl_div(q, p, reduction="none", log_target=True).sum(-1)
    same = (p.argmax(-1) == q.argmax(-1)).double()
    root = NUM_TOKENS**0.5
    assert found.name == "draft"
    assert found.perplexity == pytest.approx(float(nll.mean().exp()), rel=1e-12)
    assert found.perplexity_error == pytest.approx(float(nll.mean().exp() * nll.std() / root), rel=1e-12)
    assert found.mean_kl == pytest.approx(float(kl.mean()), rel=1e-12)
    assert found.mean_kl_error == pytest.approx(float(kl.std() / root), rel=1e-12)
    assert found.p99_kl == pytest.approx(float(kl.quantile(0.99)), rel=1e-12)
    assert found.agreement == pytest.approx(float(same.mean()), rel=1e-12)
    assert found.agreement_error == pytest.approx(float(same.std() / root), rel=1e-12)


def test_texts_of_any_cut_have_the_same_figures() -> None:
    target, logits = (RANDOM.normal(0, 3, (NUM_TOKENS, 50)).astype(np.float32) for _ in range(2))
    tokens = RANDOM.integers(0, 50, NUM_TOKENS)
    cut = TokenScores()
    for rows in (slice(0, 1), slice(1, 40), slice(40, None)):
        cut.add(target[rows], logits[rows], tokens[rows])
    assert cut.quality("x") == scored(target, logits, tokens).quality("x")


@given(arrays(np.float32, (3, 5), elements=st.floats(-100, 100, width=32)))
def test_a_model_does_not_diverge_from_itself_nor_from_a_shifted_one(logits: np.ndarray) -> None:
    exact = log_softmax(logits)
    assert np.allclose(np.exp(exact).sum(axis=-1), 1)
    assert (divergence(exact, exact) == 0).all()
    assert np.allclose(divergence(exact, log_softmax(logits.astype(np.float64) + 7)), 0, atol=1e-9)


def test_what_the_target_never_chooses_adds_nothing() -> None:
    target = log_softmax(np.array([[0.0, 0.0, -np.inf]], np.float32))
    model = log_softmax(np.array([[0.0, 0.0, 0.0]], np.float32))
    assert divergence(target, model)[0] == pytest.approx(np.log(3 / 2))
    assert divergence(model, target)[0] == np.inf


def test_what_is_not_finite_is_no_figure() -> None:
    tokens = np.zeros(2, np.int64)
    never = scored(np.zeros((2, 3), np.float32), np.array([[-np.inf, 0, 0], [0, 0, 0]], np.float32), tokens)
    found = never.quality("draft")
    assert found.perplexity is found.perplexity_error is found.mean_kl is found.mean_kl_error is None
    assert found.agreement == 0.5
    nan = scored(np.full((1, 3), np.nan, np.float32), np.zeros((1, 3), np.float32), tokens[:1]).quality("draft")
    assert nan.perplexity == pytest.approx(3)
    assert nan.mean_kl is nan.p99_kl is None


def test_padding_of_one_of_two_matrices_counts_in_neither() -> None:
    logits = RANDOM.normal(0, 3, (4, 6)).astype(np.float32)
    padded = np.concatenate([logits, np.full((4, 2), 9, np.float32)], axis=1)
    tokens = np.arange(4)
    for pair in ((logits, padded), (padded, logits)):
        found = scored(*pair, tokens).quality("draft")
        assert (found.mean_kl, found.agreement) == (0, 1)
        assert found.perplexity == scored(logits, logits, tokens).quality("draft").perplexity
