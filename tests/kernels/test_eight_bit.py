"""MXINT8 and MX2 times int8, by NumPy and every native implementation: exact integers, the same bits at any width."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from mxconv.codecs.int8 import BLOCK, quantize_int8
from mxconv.codecs.mx2 import encode_mx2, pack_mx2
from mxconv.codecs.vnni8 import TILE_ROWS, pack_quads, pack_scales, pad
from mxconv.kernels.draft_matrix import EightBitMatrix, TwoBitMatrix, mx2_matrix, mxint8_matrix
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

    step = 2.0**-6  # of the integers

    @property
    def reference(self) -> EightBitMatrix | TwoBitMatrix:
        elements = pack_quads(pad(self.integers.view(np.uint8), TILE_ROWS, BLOCK))
        return mxint8_matrix(self.shape, elements, pack_scales(pad(self.scales, TILE_ROWS, 1)))

    @property
    def factors(self) -> np.ndarray:
        """(rows, blocks) float64: what an integer is multiplied by."""
        return np.exp2(self.scales.astype(np.float64) - 127) * self.step

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


class Mx2Weights(Mxint8Weights):
    """A matrix of ±1 and ±3 and its scale bytes."""

    step = 1.0

    @property
    def reference(self) -> TwoBitMatrix:
        codes = encode_mx2(self.integers.astype(np.float32))
        return mx2_matrix(
            self.shape, pack_mx2(pad(codes, TILE_ROWS, BLOCK)), pack_scales(pad(self.scales, TILE_ROWS, 1))
        )


KINDS = (Mxint8Weights, Mx2Weights)
each_kind = pytest.mark.parametrize("kind", KINDS)


def drawn(
    kind: type[Mxint8Weights], rng: np.random.Generator, shape: tuple[int, int], scales: tuple[int, int] = (115, 131)
) -> Mxint8Weights:
    """Any integers of a format, blocks of some extremes, and scale bytes of a range."""
    num_blocks = -(-shape[1] // BLOCK)
    is_mx2 = kind is Mx2Weights
    integers = rng.choice([-3, -1, 1, 3] if is_mx2 else np.arange(-127, 128), shape).astype(np.int8)
    for value in (1, 3, -3) if is_mx2 else (0, 127, -127):
        row, block = rng.integers(shape[0]), rng.integers(num_blocks)
        integers[row, block * BLOCK : (block + 1) * BLOCK] = value
    drawn_scales = rng.integers(*scales, (shape[0], num_blocks), endpoint=True)
    return kind(integers, np.minimum(drawn_scales, 253 if is_mx2 else 254).astype(np.uint8))


def late_scaling_by_hand(weights: Mxint8Weights, x: np.ndarray) -> np.ndarray:
    """Exact integers over each block, then one float32 addition a block in ascending order."""
    dots, x_scales = weights.block_dots(x)
    assert np.abs(dots).max() < 1 << 24  # so float32 holds them
    factors = weights.factors.astype(np.float32)
    total = np.zeros(dots.shape[:2], np.float32)
    for block in range(dots.shape[2]):
        total += dots[..., block].astype(np.float32) * x_scales[:, block, None] * factors[None, :, block]
    return total


@each_kind
@pytest.mark.parametrize("shape", SHAPES)
def test_every_bit_follows_from_exact_integers_and_one_scaling_a_block(
    rng: np.random.Generator, shape: tuple[int, int], kind: type[Mxint8Weights]
) -> None:
    weights = drawn(kind, rng, shape)
    for num_tokens in (1, 2, 9):
        x = (rng.standard_normal((num_tokens, shape[1])) * 3).astype(np.float32)
        found = weights.reference.multiply(x)
        assert found.dtype == np.float32
        assert found.tobytes() == late_scaling_by_hand(weights, x).tobytes()


@each_kind
@pytest.mark.parametrize("scales", [(115, 131), (0, 1), (253, 254)])
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_are_the_values(
    rng: np.random.Generator, shape: tuple[int, int], scales: tuple[int, int], kind: type[Mxint8Weights]
) -> None:
    weights = drawn(kind, rng, shape, scales)
    indices = np.array([shape[0] - 1, 0, shape[0] // 2, 0])
    rows = weights.reference.rows(indices)
    assert rows.dtype == np.float32
    assert (rows == weights.values[indices]).all()
    assert (weights.reference.turned().rows(np.arange(1))[0] == weights.values[:, 0]).all()


def native(engine: Any, weights: Mxint8Weights) -> "NativeMatrix":
    return native_draft(engine, weights.reference)


@each_kind
@pytest.mark.parametrize("scales", [(115, 131), (0, 2), (221, 231)])  # beyond 2^104 the AVX-512 kernels count 2^104
@pytest.mark.parametrize("shape", SHAPES)
def test_products_are_the_reference_up_to_the_sum_over_blocks(
    engine: Any, rng: np.random.Generator, shape: tuple[int, int], scales: tuple[int, int], kind: type[Mxint8Weights]
) -> None:
    weights = drawn(kind, rng, shape, scales)
    x = rng.standard_normal((9, shape[1])).astype(np.float32)
    dots, x_scales = weights.block_dots(x)
    magnitude = np.einsum("trb,tb,rb->tr", np.abs(dots), x_scales, weights.factors)
    smallest = np.finfo(np.float32).tiny * 127 * 127 * BLOCK  # scales that are subnormal may vanish
    found = native(engine, weights).multiply(x)
    expected = weights.reference.multiply(x)
    assert (np.abs(found - expected) <= 2 * x_scales.shape[1] * EPSILON * magnitude + smallest).all()


@each_kind
@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_has_the_same_bits_at_every_width_and_number_of_threads(
    engine: Any, rng: np.random.Generator, shape: tuple[int, int], kind: type[Mxint8Weights]
) -> None:
    weights = drawn(kind, rng, shape)
    x = rng.standard_normal((max(WIDTHS), shape[1])).astype(np.float32)
    expected = native(_native.Engine(engine.name, 1), weights).multiply(x)
    for width in WIDTHS:
        assert native(engine, weights).multiply(x[:width]).tobytes() == expected[:width].tobytes()


@each_kind
@pytest.mark.parametrize("width", range(1, 10))
def test_integers_agree_bit_for_bit_at_their_limits(
    engine: Any, rng: np.random.Generator, width: int, kind: type[Mxint8Weights]
) -> None:
    """All scales are powers of two and sums stay below 2^24 steps, so every bit of the result is an integer's."""
    shape = 48, 256
    integers = drawn(kind, rng, shape).integers
    most = np.abs(integers).max()
    integers[:16] = np.where(rng.random((16, 256)) < 0.5, most, -most)
    integers[16], integers[17], integers[18] = most, -most, 0 if most > 3 else 1
    weights = kind(integers, np.full((48, 8), 127 - round(np.log2(kind.step)), np.uint8))  # a step of 1
    x = rng.integers(-127, 128, (width, shape[1])).astype(np.float32)
    x[:, ::BLOCK] = 127  # so that each block's scale is 1
    x[0] = np.where(np.arange(shape[1]) % 2, 127, -127)
    x[-1, :128] = 127
    expected = x.astype(np.int64) @ integers.T.astype(np.int64)
    assert np.abs(expected).max() < 1 << 24
    assert (native(engine, weights).multiply(x) == expected).all()


@each_kind
@pytest.mark.parametrize("intruder", [np.nan, np.inf, -np.inf])
def test_a_token_that_is_not_finite_gets_nans_and_leaves_others_alone(
    engine: Any, rng: np.random.Generator, intruder: float, kind: type[Mxint8Weights]
) -> None:
    matrix = native(engine, drawn(kind, rng, (40, 70)))
    x = rng.standard_normal((3, 70)).astype(np.float32)
    clean = matrix.multiply(x)
    x[1, 5] = intruder
    found = matrix.multiply(x)
    assert np.isnan(found[1]).all()
    assert np.array_equal(found[[0, 2]], clean[[0, 2]])


@each_kind
def test_rows_are_those_of_the_reference(engine: Any, rng: np.random.Generator, kind: type[Mxint8Weights]) -> None:
    weights = drawn(kind, rng, (40, 70))
    indices = np.array([39, 0, 16, 15])
    assert (native(engine, weights).rows(indices) == weights.values[indices]).all()
    assert (native(engine, weights).turned().rows(np.arange(70)) == weights.values.T).all()


@pytest.mark.skipif(not native_names(), reason="the extension is not built on this machine")
def test_arrays_of_another_shape_or_dtype_are_refused(rng: np.random.Generator) -> None:
    weights = drawn(Mxint8Weights, rng, (40, 70))
    elements, scales = weights.reference.codes, weights.reference.stored_scales
    with pytest.raises(TypeError, match=r"elements: shape \(3, 12, 64\); \(3, 24, 64\) is required"):
        _native.mxint8(40, 70, np.ascontiguousarray(elements[:, ::2]), scales)
    with pytest.raises(TypeError, match=r"codes: shape \(3, 12, 64\); \(3, 6, 64\) is required"):
        _native.mx2(40, 70, np.ascontiguousarray(elements[:, ::2]), scales)
    with pytest.raises(TypeError, match=r"scales: shape \(2, 3, 16\); \(3, 3, 16\) is required"):
        _native.mxint8(40, 70, elements, scales[:2])
    with pytest.raises(TypeError):
        _native.mxint8(40, 70, elements.view(np.int8), scales)
    with pytest.raises(TypeError, match="has no 16-bit patterns"):
        _native.mxint8(40, 70, elements, scales).patterns(
            _native.Engine("portable", 1), 0, np.empty((16, 70), np.uint16)
        )
