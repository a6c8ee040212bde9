"""Matrices of drafts times int8 in all four formats, by NumPy and by every native implementation.

By NumPy every bit follows from exact integers; kernels add the same integers up in another order, and a row has the
same bits at any width. What float32 activations give is here too.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from stored_matrices import gaussian, stored_bsfp, stored_mxfp4

from mxconv.codecs.bsfp.packing import decode_bsfp_draft
from mxconv.codecs.bsfp.speq import paper_table
from mxconv.codecs.e2m1 import DOUBLED
from mxconv.codecs.float16 import BF16, FP16, FloatFormat
from mxconv.codecs.int8 import BLOCK, quantize_int8
from mxconv.codecs.vnni8 import TILE_ROWS, pack_nibbles, pack_quads, pack_scales, pad, unpack_nibbles
from mxconv.kernels import draft_matrix, rowwise
from mxconv.kernels.draft_matrix import (
    FourBitFloatMatrix,
    FourBitMatrix,
    LateScaledMatrix,
    bsfp_draft_matrix,
    mxfp4_matrix,
    mxint8_matrix,
)
from mxconv.kernels.engine import native_names

if native_names():
    from mxconv.kernels import _native
    from mxconv.kernels.native_matrix import NativeMatrix, native_draft

SHAPES = [(1, 1), (5, 31), (16, 32), (20, 129), (257, 96), (48, 1100)]
WIDTHS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 33, 64, 70]
EPSILON = np.finfo(np.float32).eps


@dataclass(frozen=True)
class Drawn:
    """A matrix as NumPy multiplies it, its integers, and what each is multiplied by."""

    reference: LateScaledMatrix
    integers: np.ndarray  # (rows, columns) int8
    factors: np.ndarray  # (rows, blocks) float64

    @property
    def values(self) -> np.ndarray:
        """(rows, columns) float64."""
        return self.integers * np.repeat(self.factors, BLOCK, axis=1)[:, : self.integers.shape[1]]

    def block_dots(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(tokens, rows, blocks) exact integer sums, and (tokens, blocks) the scales of the activations."""
        codes, x_scales = quantize_int8(x)
        padded = pad(self.integers, 1, BLOCK).reshape(len(self.integers), -1, BLOCK).astype(np.int64)
        dots = np.einsum("tbk,rbk->trb", codes.reshape(len(x), -1, BLOCK).astype(np.int64), padded)
        return dots, x_scales


Maker = Callable[..., Drawn]


def mxint8(shape: tuple[int, int], scales: tuple[int, int] = (115, 131)) -> Drawn:
    """Any integers, blocks of some extremes, and scale bytes of a range."""
    rng, num_blocks = np.random.default_rng(11), -(-shape[1] // BLOCK)
    integers = rng.choice(np.arange(-127, 128), shape).astype(np.int8)
    for value in (0, 127, -127):
        row, block = rng.integers(shape[0]), rng.integers(num_blocks)
        integers[row, block * BLOCK : (block + 1) * BLOCK] = value
    stored = np.minimum(rng.integers(*scales, (shape[0], num_blocks), endpoint=True), 254)
    return in_mxint8(integers, stored.astype(np.uint8))


def in_mxint8(integers: np.ndarray, scales: np.ndarray) -> Drawn:
    """These, with scale bytes (rows, blocks)."""
    elements = pack_quads(pad(integers.view(np.uint8), TILE_ROWS, BLOCK))
    matrix = mxint8_matrix(integers.shape, elements, pack_scales(pad(scales, TILE_ROWS, 1)))
    return Drawn(matrix, integers, np.exp2(scales.astype(np.float64) - 133))


def mxfp4(shape: tuple[int, int], scales: tuple[int, int] | None = None) -> Drawn:
    stored, _ = stored_mxfp4(gaussian(shape))
    if scales is not None:
        stored.scales[...] = np.random.default_rng(3).integers(*scales, stored.scales.shape, endpoint=True)
    return four_bit(mxfp4_matrix(shape, stored.codes, stored.scales))


def bsfp(shape: tuple[int, int], scales: tuple[int, int] | None = None) -> Drawn:
    """BF16 scales, which fit the weights."""
    stored = stored_bsfp(BF16.encode(gaussian(shape, outliers=True)), BF16, None)
    return four_bit(bsfp_draft_matrix(shape, stored.packed.codes, stored.packed.scales, stored.table))


def four_bit(matrix: FourBitMatrix | FourBitFloatMatrix) -> Drawn:
    assert isinstance(matrix, FourBitMatrix)
    (rows, columns), num_blocks = matrix.shape, -(-matrix.shape[1] // BLOCK)
    integers = matrix.levels[unpack_nibbles(matrix.codes)][:rows, :columns]
    return Drawn(matrix, integers, matrix.scales(0, len(matrix.codes))[:rows, :num_blocks].astype(np.float64))


FORMATS: tuple[Maker, ...] = (mxint8, mxfp4, bsfp)
each_format = pytest.mark.parametrize("make", FORMATS)
each_shape = pytest.mark.parametrize("shape", SHAPES)


@each_format
@each_shape
def test_every_bit_follows_from_exact_integers_and_one_scaling_a_block(
    rng: np.random.Generator, shape: tuple[int, int], make: Maker
) -> None:
    weights = make(shape)
    for num_tokens in (1, 2, 9):
        x = (rng.standard_normal((num_tokens, shape[1])) * 3).astype(np.float32)
        dots, x_scales = weights.block_dots(x)
        assert np.abs(dots).max() < 1 << 24  # so float32 holds them
        expected = np.zeros(dots.shape[:2], np.float32)
        for block in range(dots.shape[2]):  # one float32 addition a block in ascending order
            factor = weights.factors[None, :, block].astype(np.float32)
            expected += dots[..., block].astype(np.float32) * x_scales[:, block, None] * factor
        found = weights.reference.multiply(x)
        assert (found.dtype, found.tobytes()) == (np.float32, expected.tobytes())


@each_format
@pytest.mark.parametrize("scales", [(115, 131), (0, 1), (253, 254)])
@each_shape
def test_rows_are_the_values(shape: tuple[int, int], scales: tuple[int, int], make: Maker) -> None:
    weights = make(shape, scales) if make is not mxfp4 or scales[1] < 253 else make(shape)
    indices = np.array([shape[0] - 1, 0, shape[0] // 2, 0])
    rows = weights.reference.rows(indices)
    assert rows.dtype == np.float32
    assert (rows == weights.values[indices]).all()
    assert (weights.reference.turned().rows(np.arange(1))[0] == weights.values[:, 0]).all()


@each_shape
def test_values_are_those_of_the_codecs(shape: tuple[int, int]) -> None:
    values = gaussian(shape)
    four_bits, decoded = stored_mxfp4(values)
    assert (mxfp4_matrix(shape, four_bits.codes, four_bits.scales).rows(np.arange(shape[0])) == decoded).all()
    for table in (None, paper_table(BF16)):
        held = stored_bsfp(BF16.encode(values / np.float32(64)), BF16, None, None, table)
        matrix = bsfp_draft_matrix(shape, held.packed.codes, held.packed.scales, held.table)
        assert (matrix.rows(np.arange(shape[0])) == decode_bsfp_draft(held.packed, held.table, shape)).all()


@pytest.mark.parametrize("max_tile_weights", [1, 16 * 172, 1 << 30])
def test_the_size_of_a_tile_changes_no_bit(
    monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator, max_tile_weights: int
) -> None:
    matrix, x = mxfp4((100, 172)).reference, rng.standard_normal((5, 172)).astype(np.float32)
    expected = matrix.multiply(x)
    monkeypatch.setattr(draft_matrix, "MAX_TILE_WEIGHTS", max_tile_weights)
    assert matrix.multiply(x).tobytes() == expected.tobytes()


@each_format
@pytest.mark.parametrize("intruder", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kernel", ["numpy", *native_names()])
def test_a_token_that_is_not_finite_becomes_nan_and_spoils_no_other(
    kernel: str, rng: np.random.Generator, intruder: float, make: Maker
) -> None:
    """The target lets such numbers flow; a draft that raised would stop the text that the target can write."""
    matrix = make((40, 70)).reference
    if kernel != "numpy":
        matrix = native_draft(_native.Engine(kernel, 2), matrix)
    x = rng.standard_normal((4, 70)).astype(np.float32)
    expected = matrix.multiply(x)
    x[2, 17] = intruder
    found = matrix.multiply(x)
    assert np.isnan(found[2]).all()
    assert (found[[0, 1, 3]] == expected[[0, 1, 3]]).all()


def native(engine: Any, weights: Drawn) -> "NativeMatrix":
    return native_draft(engine, weights.reference)  # type: ignore[arg-type]


@each_format
@pytest.mark.parametrize("scales", [(115, 131), (0, 2), (221, 231)])  # beyond 2^104 the AVX-512 kernels count 2^104
@each_shape
def test_native_products_are_the_reference_up_to_the_sum_over_blocks(
    engine: Any, rng: np.random.Generator, shape: tuple[int, int], scales: tuple[int, int], make: Maker
) -> None:
    weights, x = make(shape, scales), rng.standard_normal((9, shape[1])).astype(np.float32)
    dots, x_scales = weights.block_dots(x)
    magnitude = np.einsum("trb,tb,rb->tr", np.abs(dots), x_scales, weights.factors)
    smallest = np.finfo(np.float32).tiny * 127 * 127 * BLOCK  # scales that are subnormal may vanish
    found, expected = native(engine, weights).multiply(x), weights.reference.multiply(x)
    assert (np.abs(found - expected) <= 2 * x_scales.shape[1] * EPSILON * magnitude + smallest).all()


@each_format
@each_shape
def test_a_row_has_the_same_bits_at_every_width_and_number_of_threads(
    engine: Any, rng: np.random.Generator, shape: tuple[int, int], make: Maker
) -> None:
    weights, x = make(shape), rng.standard_normal((max(WIDTHS), shape[1])).astype(np.float32)
    expected = native(_native.Engine(engine.name, 1), weights).multiply(x)
    for width in WIDTHS:
        assert native(engine, weights).multiply(x[:width]).tobytes() == expected[:width].tobytes()


def activations_at_limits(rng: np.random.Generator, width: int) -> np.ndarray:
    """(width, 256) integers of which each block has the largest, so that its scale is 1."""
    x = rng.integers(-127, 128, (width, 256)).astype(np.float32)
    x[:, ::BLOCK] = 127
    x[0] = np.where(np.arange(256) % 2, 127, -127)
    return x


@pytest.mark.parametrize("width", range(1, 10))
def test_integers_agree_bit_for_bit_at_their_limits(engine: Any, rng: np.random.Generator, width: int) -> None:
    """All scales are powers of two and sums stay below 2^24 steps, so every bit of the result is an integer's."""
    integers = mxint8((48, 256)).integers.copy()
    integers[:16] = np.where(rng.random((16, 256)) < 0.5, 127, -127)
    integers[16], integers[17], integers[18] = 127, -127, 0
    scales = np.full((48, 8), 133, np.uint8)  # a step of 1
    x = activations_at_limits(rng, width)
    x[-1, :128] = 127
    expected = x.astype(np.int64) @ integers.T.astype(np.int64)
    assert np.abs(expected).max() < 1 << 24
    assert (native(engine, in_mxint8(integers, scales)).multiply(x) == expected).all()


@pytest.mark.parametrize("level", [127, -127, 12])
@pytest.mark.parametrize("width", [1, 3, 8])
def test_so_do_levels_of_nibbles(engine: Any, rng: np.random.Generator, level: int, width: int) -> None:
    levels = rng.integers(-abs(level), abs(level) + 1, 16).astype(np.int8)
    levels[3], levels[12] = level, -level
    nibbles = rng.choice(np.array([3, 12, 5, 0], np.uint8), (32, 256), p=[0.6, 0.2, 0.1, 0.1])
    x = activations_at_limits(rng, width)
    expected = x.astype(np.int64) @ levels.astype(np.int64)[nibbles].T
    assert np.abs(expected).max() < 2**24
    for ones in (np.full((2, 8, 16), 127, np.uint8), np.full((2, 2, 16), 0x3F80, np.uint16)):
        found = np.empty((width, 32), np.float32)
        _native.four_bit_int8(32, 256, pack_nibbles(nibbles), levels, ones, 1.0).multiply(engine, x, found)
        assert np.array_equal(found, expected)


def test_tiny_activations_and_scales_vanish_instead_of_wrapping(engine: Any) -> None:
    codes = pack_nibbles(np.full((16, 32), 7, np.uint8))
    for scale in (0, 1, 231):
        matrix = _native.four_bit_int8(16, 32, codes, DOUBLED, np.full((1, 1, 16), scale, np.uint8), 0.5)
        for magnitude in (1e-44, 1e-37, 1e-35, 1e-30):
            found = np.empty((1, 16), np.float32)
            matrix.multiply(engine, np.full((1, 32), magnitude, np.float32), found)
            exact = magnitude * 32 * 6 * 2.0 ** (scale - 127) if magnitude / 127 >= 2.0**-126 else 0.0
            assert abs(float(found[0, 0]) - exact) <= exact * 0.01 + 2.0**-126 * 127 * 32 * 12


@each_format
def test_native_rows_are_those_of_the_reference(engine: Any, make: Maker) -> None:
    weights, indices = make((40, 70)), np.array([39, 0, 16, 15])
    assert (native(engine, weights).rows(indices) == weights.values[indices]).all()
    turned = BF16.decode(BF16.encode(weights.values.T.astype(np.float32)))
    assert (native(engine, weights).turned().rows(np.arange(70)) == turned).all()


# ---- float32 activations: the paper's levels, which are no int8, and drafts that are to be exact ----


@pytest.mark.parametrize("float_format", [BF16, FP16], ids=lambda each: each.name)
@pytest.mark.parametrize("shape", [(37, 172), *SHAPES])
def test_the_paper_table_runs_in_float32_on_unrounded_activations(
    rng: np.random.Generator, shape: tuple[int, int], float_format: FloatFormat
) -> None:
    held = stored_bsfp(float_format.encode(gaussian(shape) / 64), float_format, table=paper_table(float_format))
    matrix = bsfp_draft_matrix(shape, held.packed.codes, held.packed.scales, held.table)
    assert isinstance(matrix, FourBitFloatMatrix)
    weights, x = matrix.rows(np.arange(shape[0])), rng.standard_normal((11, shape[1])).astype(np.float32)
    found = matrix.multiply(x)
    assert found.tobytes() == rowwise.linear(x, shape[0], lambda start, stop: weights[start:stop]).tobytes()
    exact = x.astype(np.float64) @ weights.T.astype(np.float64)
    bound = np.abs(x).astype(np.float64) @ np.abs(weights).astype(np.float64).T * (shape[1] / 4 + 8) * EPSILON
    assert (np.abs(found - exact) <= bound).all()
    for name in native_names():
        on_kernel = native_draft(_native.Engine(name, 2), matrix)
        assert (np.abs(on_kernel.multiply(x) - exact) <= bound).all()
        assert (on_kernel.rows(np.arange(min(shape[0], 4))) == weights[:4]).all()


@pytest.mark.parametrize("codec", ["mxfp4", "bsfp"])
def test_4_bits_take_float32_activations_too(engine: Any, rng: np.random.Generator, codec: str) -> None:
    shape = (40, 136)
    values, x = (rng.standard_normal(shape) * 0.1).astype(np.float32), rng.standard_normal((5, 136)).astype(np.float32)
    held, (four_bits, _) = stored_bsfp(BF16.encode(values), BF16), stored_mxfp4(values)
    exactly, by_int8 = (
        native_draft(engine, mxfp4_matrix(shape, four_bits.codes, four_bits.scales, form) if codec == "mxfp4" else
                     bsfp_draft_matrix(shape, held.packed.codes, held.packed.scales, held.table, form))
        for form in ("fp32", "int8")
    )  # fmt: skip
    weights = exactly.rows(np.arange(40))
    assert (weights == by_int8.rows(np.arange(40))).all()
    exact = x.astype(np.float64) @ weights.astype(np.float64).T
    errors = [np.abs(matrix.multiply(x) - exact).max() for matrix in (exactly, by_int8)]
    assert errors[0] < 1e-5 < 1e-3 < errors[1]  # what int8 costs, and float32 does not


@pytest.mark.skipif(not native_names(), reason="the extension is not built on this machine")
def test_arrays_of_another_shape_or_dtype_are_refused() -> None:
    reference = mxint8((40, 70)).reference
    elements, scales = reference.codes, reference.stored_scales
    for make, arrays, message in (
        (_native.mxint8, (elements[:, ::2].copy(), scales), r"elements: shape \(3, 12, 64\); \(3, 24, 64\) is"),
        (_native.mxint8, (elements, scales[:2]), r"scales: shape \(2, 3, 16\); \(3, 3, 16\) is required"),
        (_native.mxint8, (elements.view(np.int8), scales), "incompatible"),
    ):
        with pytest.raises(TypeError, match=message):
            make(40, 70, *arrays)
    with pytest.raises(TypeError, match="has no 16-bit patterns"):
        _native.mxint8(40, 70, elements, scales).patterns(
            _native.Engine("portable", 1), 0, np.empty((16, 70), np.uint16)
        )
