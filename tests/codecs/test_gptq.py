"""What matrices are rounded by: GPTQ beside the algorithm as its paper writes it, and the screen of an output head."""

import tracemalloc

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mxconv.arrays import F64
from mxconv.codecs import gptq, screen_axes
from mxconv.codecs.gptq import (
    BLOCK_INPUTS,
    DAMPING,
    E2M1,
    RIDGES,
    InputFactor,
    MxGrid,
    compensated_codes,
    fit_block_scales,
    moved_by_rows,
    moved_weights,
    output_errors,
)
from mxconv.codecs.screen_axes import ScreenAxes, candidates, hartley

GRID = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def slow_gptq(weights: F64, scales: F64, inputs: F64) -> F64:
    """Quantized weights by arXiv 2210.17323, equations 2 and 3: after each input the Hessian's inverse loses it."""
    hessian = inputs.T @ inputs
    hessian += np.eye(len(hessian)) * DAMPING * hessian.diagonal().mean()
    made, rest = np.zeros_like(weights), weights.copy()
    left = sorted(range(len(hessian)), key=lambda j: -float(np.square(inputs[:, j]).sum()))
    while left:
        j, inverse = left[0], np.linalg.inv(hessian[np.ix_(left, left)])
        # ml_dtypes rounds to nearest, ties to even; beyond 6 it has no infinity
        rounded = np.clip(rest[:, j] / scales[:, j], -6, 6).astype(np.float32).astype(ml_dtypes.float4_e2m1fn)
        made[:, j] = rounded.astype(np.float64) * scales[:, j]
        rest[:, left] -= np.outer((rest[:, j] - made[:, j]) / inverse[0, 0], inverse[0])
        left = left[1:]
    return made


def values(codes: NDArray[np.uint8], scales: F64) -> F64:
    return np.where(codes & 8, -1, 1) * GRID[codes & 7] * scales


@pytest.mark.parametrize(("rows", "columns", "num_inputs"), [(3, 5, 40), (7, 33, 20), (4, BLOCK_INPUTS + 30, 300)])
def test_codes_are_those_of_the_algorithm_column_by_column(rows: int, columns: int, num_inputs: int) -> None:
    rng = np.random.default_rng(columns)
    mixed = rng.standard_normal((columns, columns)) * rng.gamma(1.0, size=columns)
    inputs = rng.standard_normal((num_inputs, columns)) @ mixed
    weights = rng.standard_normal((rows, columns))
    scales = 2.0 ** rng.integers(-3, 1, (rows, columns))
    codes = compensated_codes(weights, MxGrid(E2M1, scales), InputFactor.of(inputs.T @ inputs))
    assert np.allclose(values(codes, scales), slow_gptq(weights, scales, inputs))


def test_an_input_that_is_always_zero_neither_gives_nor_takes() -> None:
    rng = np.random.default_rng(2)
    inputs = rng.standard_normal((50, 8))
    inputs[:, 3] = 0
    weights, scales = rng.standard_normal((4, 8)), np.full((4, 8), 0.25)
    kept = [0, 1, 2, 4, 5, 6, 7]
    codes = compensated_codes(weights, MxGrid(E2M1, scales), InputFactor.of(inputs.T @ inputs, 0.01))
    nearest = np.abs(values(codes, scales)[:, 3] - weights[:, 3])
    assert (nearest <= 0.25).all()
    others = inputs[:, kept]
    damping = 0.01 * 7 / 8  # the mean over eight squares, one of them zero
    alone = compensated_codes(
        weights[:, kept], MxGrid(E2M1, scales[:, kept]), InputFactor.of(others.T @ others, damping)
    )
    assert np.array_equal(codes[:, kept], alone)


def test_each_block_takes_the_scale_whose_nearest_codes_err_least() -> None:
    rng = np.random.default_rng(3)
    weights, squares = rng.standard_normal((6, 70)), rng.gamma(0.3, size=70)
    weights[:3] *= 2
    weights[2, 32:64] = 0
    cast = np.full((6, 3), 126, np.uint8)
    cast[2, 1] = 0
    found = fit_block_scales(E2M1, weights, cast, squares)
    for row, block in np.ndindex(found.shape):
        columns = slice(32 * block, min(32 * block + 32, 70))
        errors = {}
        for code in (126, 125, 127):  # of equal ones the first
            scaled = np.clip(weights[row, columns] / 2.0 ** (code - 127), -6, 6).astype(np.float32)
            made = scaled.astype(ml_dtypes.float4_e2m1fn).astype(np.float64) * 2.0 ** (code - 127)
            errors[code] = (squares[columns] * np.square(weights[row, columns] - made)).sum()
        assert found[row, block] == (min(errors, key=lambda code: errors[code]) if cast[row, block] else 0)
    assert set(found.ravel().tolist()) == {0, 125, 126, 127}


def test_errors_are_those_of_the_outputs() -> None:
    rng = np.random.default_rng(3)
    inputs, weights, scales = rng.standard_normal((60, 40)), rng.standard_normal((5, 40)), np.full((5, 40), 0.5)
    codes = compensated_codes(weights, MxGrid(E2M1, scales), InputFactor.of(inputs.T @ inputs))
    made = inputs @ (weights - values(codes, scales)).T
    off = weights - MxGrid(E2M1, scales).values(codes)
    assert np.allclose(output_errors(off, inputs.T @ inputs), np.square(made).sum(axis=0))


def halves(x: F64, y: F64) -> F64:
    """X^T Y of the first half of the rows, and of the second."""
    return np.stack([a.T @ b for a, b in zip(np.split(x, 2), np.split(y, 2), strict=True)])


@pytest.mark.parametrize("noise", [0.1, 3.0])
def test_weights_move_as_a_ridge_regression_does_that_holds_on_other_rows(noise: float) -> None:
    """Beside least squares over the rows and the ridge's own, stacked."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((400, 6)) * np.array([9, 1, 1, 1, 0.1, 1])
    weights, change = rng.standard_normal((4, 6)), rng.standard_normal((4, 6))
    lacking = x @ change.T + noise * rng.standard_normal((400, 4))
    moved = moved_weights(weights, halves(x, x), halves(x, lacking))
    stacked, found = np.concatenate([lacking, np.zeros((6, 4))]), []
    for ridge in RIDGES:
        rows = np.sqrt(ridge * np.square(x).sum(axis=0).mean()) * np.eye(6)
        found.append(np.linalg.lstsq(np.concatenate([x, rows]), stacked, rcond=None)[0].T)
    assert any(np.allclose(moved - weights, each) for each in found)
    assert np.square(lacking - x @ (moved - weights).T).sum() < 0.95 * np.square(lacking).sum()


def test_weights_stay_where_nothing_that_inputs_say_holds_on_other_rows() -> None:
    rng = np.random.default_rng(4)
    x, weights = rng.standard_normal((40, 3)), rng.standard_normal((5, 3))
    lacking = np.repeat([[1.0], [-1.0]], 20, axis=0) * (x @ rng.standard_normal((3, 5)))
    assert moved_weights(weights, halves(x, x), halves(x, lacking)) is weights


def test_weights_stay_where_one_half_of_the_rows_is_empty() -> None:
    rng = np.random.default_rng(5)
    x = np.concatenate([rng.standard_normal((40, 3)), np.zeros((40, 3))])
    weights = rng.standard_normal((2, 3))
    assert moved_weights(weights, halves(x, x), halves(x, rng.standard_normal((80, 2)))) is weights


def test_weights_move_by_rows_as_they_do_by_sums_over_these() -> None:
    rng, num_rows = np.random.default_rng(6), 60
    x = rng.standard_normal((num_rows, 100)) * rng.gamma(1.0, size=100)
    weights = rng.standard_normal((7, 100))
    wanted = x @ rng.standard_normal((100, 7)) + 0.1 * rng.standard_normal((num_rows, 7))
    is_second = np.arange(num_rows) >= num_rows // 2
    moved = moved_by_rows(weights, x.astype(np.float32), wanted.astype(np.float32), is_second)
    expected = moved_weights(weights, halves(x, x), halves(x, wanted))
    assert np.abs(expected - weights).max() > 0.1
    assert np.allclose(moved, expected, atol=1e-3)
    first, second = np.split(x.astype(np.float32), 2)
    zeros = np.concatenate([first, np.zeros_like(second)])
    assert moved_by_rows(weights, zeros, wanted.astype(np.float32), is_second) is weights


def test_the_factor_of_many_inputs_is_the_same_in_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(7)
    inputs = rng.standard_normal((900, 700)) * rng.gamma(1.0, size=700)
    products = inputs.T @ inputs
    expected = InputFactor.of(products)
    monkeypatch.setattr(gptq, "MANY_INPUTS", 100)
    tracemalloc.start()
    found = InputFactor.of(products)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert np.array_equal(found.order, expected.order)
    assert np.allclose(found.unit, expected.unit, atol=1e-9)
    assert np.array_equal(found.unit, np.triu(found.unit))
    assert peak < 2.3 * products.nbytes  # the factor and its inverse


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
    damped = products + screen_axes.DAMPING * products.trace() / 24 * np.eye(24)
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
