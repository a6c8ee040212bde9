"""The native activations and the cap on scores, against exact arithmetic and NumPy."""

import math
from typing import Any

import numpy as np
import pytest

from mxconv.engine.activations import ACTIVATIONS
from mxconv.kernels import rowwise

_native = pytest.importorskip("mxconv.kernels._native", reason="the extension is not built on this machine")

LENGTHS = [1, 2, 3, 7, 16, 17, 63, 65, 176, 2048]
EPSILON = np.finfo(np.float32).eps


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def silu_times(engine: Any, gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    return activated(engine, "silu", gate, up)


def activated(engine: Any, name: str, x: np.ndarray, y: np.ndarray | None = None) -> np.ndarray:
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


def test_gates_are_clamped_from_above_and_ups_from_both_sides(engine: Any) -> None:
    x, y = (grid.ravel() for grid in np.meshgrid(np.linspace(-30, 30, 601), np.linspace(-9, 9, 37)))
    gates, ups = np.minimum(x, 7), np.clip(y, -7, 7)
    found = clamped(engine, 1.702, 7, x.astype(np.float32), y.astype(np.float32))
    np.testing.assert_allclose(found, (ups + 1) * gates / (1 + np.exp(-1.702 * gates)), rtol=2e-5, atol=2e-6)
    odd = np.array([np.nan, 1, -np.inf, np.inf, 1], np.float32), np.array([1, np.nan, 2, 1, -np.inf], np.float32)
    found = clamped(engine, 1.702, 7, *odd)
    assert np.isnan(found[:2]).all()
    np.testing.assert_allclose(found[3:], [14 / (1 + np.exp(-1.702 * 7)), -6 / (1 + np.exp(-1.702))], rtol=1e-5)


def test_silu_is_within_three_units_in_the_last_place(engine: Any) -> None:
    x = np.concatenate([np.linspace(-87.3, 90, 200_001), np.geomspace(1e-38, 1, 10_000)]).astype(np.float32)
    x = np.concatenate([x, -x[x < 87.3]])
    exact = x.astype(np.float64) / (1 + np.exp(-x.astype(np.float64)))
    found = silu_times(engine, x, np.ones_like(x))
    units = np.abs(found - exact) / np.spacing(np.abs(exact).astype(np.float32))
    assert units.max() <= 3


def test_silu_of_huge_infinite_and_missing_numbers_is_that_of_numpy(engine: Any) -> None:
    x = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 3e38, -3e38, -1e4, -90, 90, 1e4], np.float32)
    with np.errstate(invalid="ignore"):
        expected = rowwise.silu(x[None])[0]
    found = silu_times(engine, x, np.ones_like(x))
    np.testing.assert_array_equal(found, expected)
    assert (np.signbit(found) == np.signbit(expected)).all()


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
    x = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 3e38, -3e38], np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        expected = ACTIVATIONS[name](x[None])[0]
    np.testing.assert_array_equal(activated(engine, name, x), expected)


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
