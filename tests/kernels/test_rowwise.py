import numpy as np
import pytest

from mxconv.kernels import rowwise

rng = np.random.default_rng(0)


@pytest.mark.parametrize(("num_tokens", "out_features", "in_features"), [(1, 1, 1), (3, 50, 257), (70, 33, 64)])
def test_linear_is_the_matrix_product(num_tokens: int, out_features: int, in_features: int) -> None:
    x = rng.standard_normal((num_tokens, in_features), np.float32)
    weights = rng.standard_normal((out_features, in_features), np.float32)
    result = rowwise.linear(x, out_features, lambda start, stop: weights[start:stop])
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, x.astype(np.float64) @ weights.T.astype(np.float64), atol=1e-4)


def test_linear_gives_the_same_bits_whatever_the_size_of_its_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    x = rng.standard_normal((9, 172), np.float32)
    weights = rng.standard_normal((100, 172), np.float32)
    results = []
    for products in (1, 5000, 1 << 30):
        monkeypatch.setattr(rowwise, "TILE_PRODUCTS", products)
        results.append(rowwise.linear(x, 100, lambda start, stop: weights[start:stop]))
    assert (results[0] == results[1]).all()
    assert (results[0] == results[2]).all()


def test_linear_asks_for_each_tile_once_and_starts_at_multiples_of_16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rowwise, "TILE_PRODUCTS", 40 * 64)
    asked = []

    def weight_rows(start: int, stop: int) -> np.ndarray:
        asked.append((start, stop))
        return np.ones((stop - start, 64), np.float32)

    rowwise.linear(np.ones((500, 64), np.float32), 100, weight_rows)
    assert asked == [(0, 32), (32, 64), (64, 96), (96, 100)]


def test_rms_norm_follows_its_formula() -> None:
    x, weight = rng.standard_normal((4, 3, 48), np.float32), rng.standard_normal(48, np.float32)
    exact = x.astype(np.float64)
    expected = exact / np.sqrt((exact**2).mean(-1, keepdims=True) + 1e-5) * weight
    np.testing.assert_allclose(rowwise.rms_norm(x, weight, 1e-5), expected, rtol=1e-5, atol=1e-6)


def test_rms_norm_of_zeros_is_zeros() -> None:
    assert (rowwise.rms_norm(np.zeros((1, 8), np.float32), np.ones(8, np.float32), 1e-6) == 0).all()


def test_silu_follows_its_formula_and_saturates_without_a_warning() -> None:
    x = np.linspace(-20, 20, 401, dtype=np.float32)[None]
    np.testing.assert_allclose(rowwise.silu(x), x / (1 + np.exp(-x.astype(np.float64))), rtol=1e-5)
    extremes = rowwise.silu(np.array([[-1e30, -100, 0, 100, 1e30]], np.float32))
    assert extremes.tolist() == [[0, 0, 0, 100, np.float32(1e30)]]


@pytest.mark.parametrize("width", [1, 2, 3, 5, 8, 16, 33, 64])
def test_every_operator_maps_a_row_by_itself(width: int) -> None:
    x = rng.standard_normal((width, 172), np.float32)
    weights = rng.standard_normal((50, 172), np.float32)
    operators = [
        lambda rows: rowwise.linear(rows, 50, lambda start, stop: weights[start:stop]),
        lambda rows: rowwise.rms_norm(rows, weights[0], 1e-6),
        rowwise.silu,
    ]
    for operator in operators:
        alone = np.concatenate([operator(x[row : row + 1]) for row in range(width)])
        assert (operator(x) == alone).all()
