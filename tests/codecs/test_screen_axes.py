"""The screen of an output head: the best one of its rank, and what it lets through."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mxconv.codecs.screen_axes import DAMPING, ScreenAxes, candidates, hartley


@pytest.mark.parametrize("size", [1, 2, 7, 32, 96])
def test_the_matrix_that_evens_out_columns_is_symmetric_and_orthogonal(size: int) -> None:
    made = hartley(size)
    assert np.allclose(made, made.T) and np.allclose(made @ made, np.eye(size))


@pytest.mark.parametrize("rank", [1, 5, 12, 24])
def test_no_matrix_of_its_rank_errs_less_over_the_inputs(rank: int) -> None:
    """The oracle is NumPy's singular value decomposition of W C^(1/2): what is left is its smaller singular values."""
    random = np.random.default_rng(1)
    weights, inputs = random.standard_normal((200, 24)), random.standard_normal((500, 24)) * np.geomspace(5, 0.1, 24)
    products = inputs.T @ inputs
    damped = products + DAMPING * products.trace() / 24 * np.eye(24)
    projection, given = ScreenAxes.of(weights.T @ weights, products).of_rank(rank)
    assert projection.shape == given.T.shape == (rank, 24)
    error = weights - weights @ given @ projection
    found = np.trace(error @ damped @ error.T)
    singular = np.linalg.svd(weights @ np.linalg.cholesky(damped), compute_uv=False)
    assert found == pytest.approx(np.square(singular[rank:]).sum(), rel=1e-6, abs=1e-6 * np.square(singular).sum())
    columns = np.linalg.norm(weights @ given, axis=0)  # of one size, however much the axes differ
    assert rank < 12 or columns.max() < 4 * columns.min()


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 200), st.integers(1, 14), st.data())
def test_candidates_are_those_of_the_definition(num_tokens: int, most: int, data: st.DataObject) -> None:
    numbers = st.sampled_from([-np.inf, -1.5, 0.0, 0.25, 2.0, 3.0, np.inf, np.nan])
    scores = np.array(data.draw(st.lists(numbers, min_size=num_tokens, max_size=num_tokens)), np.float32)
    tiles = [scores[start : start + 16] for start in range(0, num_tokens, 16)]
    highest = sorted((max((x for x in tile if not np.isnan(x)), default=-np.inf) for tile in tiles), reverse=True)
    least = -np.inf if most >= len(highest) else highest[most - 1]
    assert candidates(scores, most).tolist() == [bool(score >= least) for score in scores]
