"""What is done to rows one by one, by NumPy and by native kernels, against exact arithmetic: norms, activations."""

import math
from typing import Any

import numpy as np
import pytest

from mxconv.engine.activations import ACTIVATIONS
from mxconv.kernels import rowwise
from mxconv.kernels.engine import native_names

if native_names():
    from mxconv.kernels import _native

LENGTHS = [1, 2, 3, 7, 16, 17, 63, 65, 176, 2048]
EPSILON = np.finfo(np.float32).eps


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def normed(engine: Any, x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, eps: float) -> np.ndarray:
    """Rows after a layer norm, or after an RMS norm, which has no bias."""
    if engine is None:
        return rowwise.rms_norm(x, weight, eps)
    out = np.empty_like(x)
    _native.norm(engine, x, _native.Norm(weight, bias, eps, bias is not None), out)
    return out


def activated(engine: Any, name: str, x: np.ndarray, y: np.ndarray | None = None) -> np.ndarray:
    if engine is None:
        with np.errstate(over="ignore", invalid="ignore"):
            return ACTIVATIONS[name](x[None])[0] * (1 if y is None else y)  # type: ignore[index]
    out = np.empty_like(x)
    _native.activate(engine, name, x, y, out)
    return out


def capped(engine: Any, cap: float, x: np.ndarray) -> np.ndarray:
    out = x.copy()
    _native.cap(engine, cap, out)
    return out


def clamped(engine: Any, slope: float, limit: float, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    out = np.empty_like(x)
    _native.clamped_gates(engine, x, y, slope, limit, out)
    return out


@pytest.mark.parametrize(("num_tokens", "out_features", "in_features"), [(1, 1, 1), (3, 50, 257), (70, 33, 64)])
def test_linear_is_the_matrix_product_a_row_by_itself(
    rng: np.random.Generator, num_tokens: int, out_features: int, in_features: int
) -> None:
    x = rng.standard_normal((num_tokens, in_features), np.float32)
    weights = rng.standard_normal((out_features, in_features), np.float32)
    result = rowwise.linear(x, out_features, lambda start, stop: weights[start:stop])
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, x.astype(np.float64) @ weights.T.astype(np.float64), atol=1e-4)
    for width in (1, 2, 33):
        assert (
            rowwise.linear(x[:width], out_features, lambda start, stop: weights[start:stop]) == result[:width]
        ).all()


def test_linear_gives_the_same_bits_whatever_the_size_of_its_tiles(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
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


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("has_bias", [False, True])
def test_norms_are_exact_up_to_the_sums(either: Any, rng: np.random.Generator, has_bias: bool, length: int) -> None:
    if either is None and has_bias:
        pytest.skip("of kernels alone")
    x, weight, bias = normal(rng, 3, length) * np.float32(10) + np.float32(3), normal(rng, length), normal(rng, length)
    exact = x.astype(np.float64)
    if has_bias:
        exact = exact - exact.mean(axis=1, keepdims=True)
    exact = exact / np.sqrt(np.mean(exact**2, axis=1, keepdims=True) + 1e-5) * weight + (bias if has_bias else 0)
    found = normed(either, x, weight, bias if has_bias else None, 1e-5)
    rows = [normed(either, x[row : row + 1], weight, bias if has_bias else None, 1e-5) for row in range(3)]
    assert np.concatenate(rows).tobytes() == found.tobytes()
    if not has_bias:
        np.testing.assert_allclose(found, exact, rtol=(8 + length / 32) * EPSILON)
    elif length > 1:  # of one value nothing is left but a rounding
        np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-5 + length * 1e-8)
        _native.norm(either, x, _native.Norm(weight, bias, 1e-5, True), x)  # in place
        np.testing.assert_array_equal(x, found)


def test_rms_norms_of_zeros_infinities_and_nans_are_those_of_numpy(engine: Any) -> None:
    x, ones = np.zeros((4, 20), np.float32), np.ones(20, np.float32)
    x[1, 3], x[2, 19], x[3] = np.inf, np.nan, 3e38
    with np.errstate(over="ignore", invalid="ignore"):
        expected = rowwise.rms_norm(x, ones, 1e-6)
    assert (expected[0] == 0).all()
    np.testing.assert_array_equal(normed(engine, x, ones, None, 1e-6), expected)


def test_gates_are_clamped_from_above_and_ups_from_both_sides(engine: Any) -> None:
    x, y = (grid.ravel() for grid in np.meshgrid(np.linspace(-30, 30, 601), np.linspace(-9, 9, 37)))
    gates, ups = np.minimum(x, 7), np.clip(y, -7, 7)
    found = clamped(engine, 1.702, 7, x.astype(np.float32), y.astype(np.float32))
    np.testing.assert_allclose(found, (ups + 1) * gates / (1 + np.exp(-1.702 * gates)), rtol=2e-5, atol=2e-6)
    odd = np.array([np.nan, 1, -np.inf, np.inf, 1], np.float32), np.array([1, np.nan, 2, 1, -np.inf], np.float32)
    found = clamped(engine, 1.702, 7, *odd)
    assert np.isnan(found[:2]).all()
    np.testing.assert_allclose(found[3:], [14 / (1 + np.exp(-1.702 * 7)), -6 / (1 + np.exp(-1.702))], rtol=1e-5)


def test_silu_is_within_a_few_units_in_the_last_place(either: Any) -> None:
    x = np.concatenate([np.linspace(-87.3, 90, 200_001), np.geomspace(1e-38, 1, 10_000)]).astype(np.float32)
    x = np.concatenate([x, -x[x < 87.3]])
    exact = x.astype(np.float64) / (1 + np.exp(-x.astype(np.float64)))
    found = activated(either, "silu", x, np.ones_like(x))
    units = np.abs(found - exact) / np.spacing(np.abs(exact).astype(np.float32))
    assert units.max() <= (4 if either is None else 3)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", [*ACTIVATIONS, "cap", "clamped"])
def test_a_value_has_the_same_bits_wherever_it_stands(
    engine: Any, rng: np.random.Generator, name: str, length: int
) -> None:
    def made(x: np.ndarray, y: np.ndarray) -> bytes:
        if name == "cap":
            return capped(engine, 1.5, x).tobytes()
        if name == "clamped":
            return clamped(engine, 1.7, 1.1, x, y).tobytes()
        return activated(engine, name, x, y).tobytes()

    x, y = normal(rng, length) * 2, normal(rng, length)
    whole = made(x, y)
    for start in range(0, length, max(length // 9, 1)):
        assert made(x[start:], y[start:]) == whole[4 * start :]
        assert made(x[: start + 1], y[: start + 1]) == whole[: 4 * (start + 1)]


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh", "relu2"])
def test_activations_are_exact_up_to_a_millionth_of_their_argument(engine: Any, name: str) -> None:
    x = np.concatenate([np.linspace(-20, 20, 100_001), [-1e30, -100.0, 100.0, 1e-30, -1e-30]]).astype(np.float32)
    wide = x.astype(np.float64)
    if name == "relu2":
        exact = np.maximum(wide, 0) ** 2
        kept = exact < 3e38
        np.testing.assert_allclose(activated(engine, name, x)[kept], exact[kept], rtol=2 * EPSILON, atol=1e-45)
        return
    if name == "gelu":
        exact = np.array([0.5 * value * math.erfc(-value / math.sqrt(2)) for value in wide])
    else:
        with np.errstate(over="ignore"):
            exact = 0.5 * wide * (1 + np.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)))
    assert (np.abs(activated(engine, name, x) - exact) <= 1e-6 * np.abs(wide)).all()


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_of_infinite_and_missing_numbers_are_those_of_numpy(engine: Any, name: str) -> None:
    x = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 3e38, -3e38, -1e4, -90, 90, 1e4], np.float32)
    found, expected = activated(engine, name, x), activated(None, name, x)
    np.testing.assert_array_equal(found, expected)
    if name == "silu":
        assert (np.signbit(found) == np.signbit(expected)).all()


def test_an_unknown_activation_is_refused(engine: Any) -> None:
    with pytest.raises(ValueError, match="activation must be silu, gelu, gelu_tanh, relu2 or sigmoid"):
        activated(engine, "mish", np.ones(3, np.float32))


def test_a_cap_bends_within_six_units_in_the_last_place(engine: Any) -> None:
    x = np.concatenate([np.linspace(-700, 700, 100_001), np.geomspace(1e-30, 30, 10_000)]).astype(np.float32)
    exact = 50 * np.tanh(x.astype(np.float64) / 50)
    units = np.abs(capped(engine, 50.0, x) - exact) / np.spacing(np.abs(exact).astype(np.float32))
    assert units.max() <= 6
    ends = capped(engine, 2.0, np.array([np.inf, -np.inf, np.nan, -0.0], np.float32))
    assert ends[:2].tolist() == [2.0, -2.0]
    assert np.isnan(ends[2]) and np.signbit(ends[3])
