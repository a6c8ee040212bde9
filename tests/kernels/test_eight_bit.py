"""MXINT8 times int8, by NumPy and by every native implementation: exact integers, and the same bits at any width."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from mxconv.codecs.int8 import BLOCK, quantize_int8
from mxconv.codecs.vnni8 import TILE_ROWS, pack_quads, pack_scales, pad
from mxconv.kernels.draft_matrix import EightBitMatrix, mxint8_matrix
from mxconv.kernels.engine import native_names

if native_names():
    from mxconv.kernels import _native
    from mxconv.kernels.native_matrix import NativeMatrix, native_draft

SHAPES = [(1, 1), (5, 31), (16, 32), (20, 129), (257, 96), (48, 1100)]
WIDTHS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 33, 64, 70]
EPSILON = np.finfo(np.float32).eps


@dataclass(frozen=True)
class Mxint8Weights:
    """A matrix as its integers and its scale bytes."""

    integers: np.ndarray  # (rows, columns) int8
    scales: np.ndarray  # (rows, blocks) uint8 E8M0

    @property
    def shape(self) -> tuple[int, int]:
        return self.integers.shape[0], self.integers.shape[1]

    @property
    def reference(self) -> EightBitMatrix:
        elements = pack_quads(pad(self.integers.view(np.uint8), TILE_ROWS, BLOCK))
        return mxint8_matrix(self.shape, elements, pack_scales(pad(self.scales, TILE_ROWS, 1)))

    @property
    def factors(self) -> np.ndarray:
        """(rows, blocks) float64: what an integer is multiplied by."""
        return np.exp2(self.scales.astype(np.float64) - 127 - 6)

    @property
    def values(self) -> np.ndarray:
        """(rows, columns) float64."""
        return self.integers * np.repeat(self.factors, BLOCK, axis=1)[:, : self.shape[1]]

    def block_dots(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(tokens, rows, blocks) exact integer sums, and (tokens, blocks) the scales of the activations."""
        codes, x_scales = quantize_int8(x)
        padded = pad(self.integers, 1, BLOCK).reshape(len(self.integers), -1, BLOCK).astype(np.int64)
        dots = np.einsum("tbk,rbk->trb", codes.reshape(len(x), -1, BLOCK).astype(np.int64), padded)
        return dots, x_scales


def mxint8_weights(
    rng: np.random.Generator, shape: tuple[int, int], scales: tuple[int, int] = (115, 131)
) -> Mxint8Weights:
    """Any integers, a block of zeros, a block of each extreme, and scale bytes of a range."""
    num_blocks = -(-shape[1] // BLOCK)
    integers = rng.integers(-127, 128, shape).astype(np.int8)
    for value in (0, 127, -127):
        row, block = rng.integers(shape[0]), rng.integers(num_blocks)
        integers[row, block * BLOCK : (block + 1) * BLOCK] = value
    return Mxint8Weights(integers, rng.integers(*scales, (shape[0], num_blocks), endpoint=True).astype(np.uint8))


def late_scaling_by_hand(weights: Mxint8Weights, x: np.ndarray) -> np.ndarray:
    """Exact integers over each block, then one float32 addition a block in ascending order."""
    dots, x_scales = weights.block_dots(x)
    assert np.abs(dots).max() < 1 << 24  # so float32 holds them
    factors = weights.factors.astype(np.float32)
    total = np.zeros(dots.shape[:2], np.float32)
    for block in range(dots.shape[2]):
        total += dots[..., block].astype(np.float32) * x_scales[:, block, None] * factors[None, :, block]
    return total


@pytest.mark.parametrize("shape", SHAPES)
def test_every_bit_follows_from_exact_integers_and_one_scaling_a_block(
    rng: np.random.Generator, shape: tuple[int, int]
) -> None:
    weights = mxint8_weights(rng, shape)
    for num_tokens in (1, 2, 9):
        x = (rng.standard_normal((num_tokens, shape[1])) * 3).astype(np.float32)
        found = weights.reference.multiply(x)
        assert found.dtype == np.float32
        assert found.tobytes() == late_scaling_by_hand(weights, x).tobytes()


@pytest.mark.parametrize("scales", [(115, 131), (0, 1), (253, 254)])
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_are_the_values(rng: np.random.Generator, shape: tuple[int, int], scales: tuple[int, int]) -> None:
    weights = mxint8_weights(rng, shape, scales)
    indices = np.array([shape[0] - 1, 0, shape[0] // 2, 0])
    rows = weights.reference.rows(indices)
    assert rows.dtype == np.float32
    assert (rows == weights.values[indices]).all()
    assert (weights.reference.turned().rows(np.arange(1))[0] == weights.values[:, 0]).all()


def native(engine: Any, weights: Mxint8Weights) -> "NativeMatrix":
    return native_draft(engine, weights.reference)


@pytest.mark.parametrize("scales", [(115, 131), (0, 2), (221, 231)])  # beyond 2^104 the AVX-512 kernels count 2^104
@pytest.mark.parametrize("shape", SHAPES)
def test_products_are_the_reference_up_to_the_sum_over_blocks(
    engine: Any, rng: np.random.Generator, shape: tuple[int, int], scales: tuple[int, int]
) -> None:
    weights = mxint8_weights(rng, shape, scales)
    x = rng.standard_normal((9, shape[1])).astype(np.float32)
    dots, x_scales = weights.block_dots(x)
    magnitude = np.einsum("trb,tb,rb->tr", np.abs(dots), x_scales, weights.factors)
    smallest = np.finfo(np.float32).tiny * 127 * 127 * BLOCK  # scales that are subnormal may vanish
    found = native(engine, weights).multiply(x)
    expected = weights.reference.multiply(x)
    assert (np.abs(found - expected) <= 2 * x_scales.shape[1] * EPSILON * magnitude + smallest).all()


@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_has_the_same_bits_at_every_width_and_number_of_threads(
    engine: Any, rng: np.random.Generator, shape: tuple[int, int]
) -> None:
    weights = mxint8_weights(rng, shape)
    x = rng.standard_normal((max(WIDTHS), shape[1])).astype(np.float32)
    expected = native(_native.Engine(engine.name, 1), weights).multiply(x)
    for width in WIDTHS:
        assert native(engine, weights).multiply(x[:width]).tobytes() == expected[:width].tobytes()


@pytest.mark.parametrize("width", range(1, 10))
def test_integers_agree_bit_for_bit_at_their_limits(engine: Any, rng: np.random.Generator, width: int) -> None:
    """All scales are powers of two and sums stay below 2^24 steps, so every bit of the result is an integer's."""
    shape = 48, 256
    integers = rng.integers(-127, 128, shape).astype(np.int8)
    integers[:16] = np.where(rng.random((16, 256)) < 0.5, 127, -127)
    integers[16], integers[17], integers[18] = 127, -127, 0
    weights = Mxint8Weights(integers, np.full((48, 8), 127 + 6, np.uint8))  # a step of 1
    x = rng.integers(-127, 128, (width, shape[1])).astype(np.float32)
    x[:, ::BLOCK] = 127  # so that each block's scale is 1
    x[0] = np.where(np.arange(shape[1]) % 2, 127, -127)
    x[-1, :128] = 127
    expected = x.astype(np.int64) @ integers.T.astype(np.int64)
    assert np.abs(expected).max() < 1 << 24
    assert (native(engine, weights).multiply(x) == expected).all()


@pytest.mark.parametrize("intruder", [np.nan, np.inf, -np.inf])
def test_a_token_that_is_not_finite_gets_nans_and_leaves_others_alone(
    engine: Any, rng: np.random.Generator, intruder: float
) -> None:
    matrix = native(engine, mxint8_weights(rng, (40, 70)))
    x = rng.standard_normal((3, 70)).astype(np.float32)
    clean = matrix.multiply(x)
    x[1, 5] = intruder
    found = matrix.multiply(x)
    assert np.isnan(found[1]).all()
    assert np.array_equal(found[[0, 2]], clean[[0, 2]])


def test_rows_are_those_of_the_reference(engine: Any, rng: np.random.Generator) -> None:
    weights = mxint8_weights(rng, (40, 70))
    indices = np.array([39, 0, 16, 15])
    assert (native(engine, weights).rows(indices) == weights.values[indices]).all()
    assert (native(engine, weights).turned().rows(np.arange(70)) == weights.values.T).all()


@pytest.mark.skipif(not native_names(), reason="the extension is not built on this machine")
def test_arrays_of_another_shape_or_dtype_are_refused(rng: np.random.Generator) -> None:
    weights = mxint8_weights(rng, (40, 70))
    elements, scales = weights.reference.codes, weights.reference.stored_scales
    with pytest.raises(TypeError, match=r"elements: shape \(3, 12, 64\); \(3, 24, 64\) is required"):
        _native.mxint8(40, 70, np.ascontiguousarray(elements[:, ::2]), scales)
    with pytest.raises(TypeError, match=r"scales: shape \(2, 3, 16\); \(3, 3, 16\) is required"):
        _native.mxint8(40, 70, elements, scales[:2])
    with pytest.raises(TypeError):
        _native.mxint8(40, 70, elements.view(np.int8), scales)
    with pytest.raises(TypeError, match="has no 16-bit patterns"):
        _native.mxint8(40, 70, elements, scales).patterns(
            _native.Engine("portable", 1), 0, np.empty((16, 70), np.uint16)
        )
