"""Every native implementation against exact arithmetic and NumPy: shapes at tile edges, all formats, any width."""

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest

from mxconv.arrays import F32
from mxconv.codecs.bsfp.histogram import PatternHistogram, row_shifts_of
from mxconv.codecs.bsfp.packing import PackedBsfp, encode_bsfp
from mxconv.codecs.bsfp.speq import paper_table
from mxconv.codecs.bsfp.table import SegmentTable
from mxconv.codecs.e2m1 import DOUBLED
from mxconv.codecs.float16 import BF16, FP16, FloatFormat
from mxconv.codecs.int8 import quantize_int8
from mxconv.codecs.mxfp4 import quantize_mxfp4
from mxconv.codecs.vnni8 import TILE_ROWS, pack_nibbles, pack_scales, pad, padded
from mxconv.kernels.draft_matrix import bsfp_draft_matrix, mxfp4_matrix
from mxconv.kernels.encoders import fit_table

_native = pytest.importorskip("mxconv.kernels._native", reason="the extension is not built on this machine")

IMPLEMENTATIONS = _native.available()
SHAPES = [(1, 1), (5, 31), (17, 128), (64, 172), (257, 96), (48, 1100)]
WIDTHS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 33, 64, 70]


def weights(rng: np.random.Generator, shape: tuple[int, int]) -> F32:
    """Rows whose scales differ by octaves, and a few weights far out, which escape."""
    values = rng.standard_normal(shape) * 2.0 ** rng.integers(-6, 3, (shape[0], 1))
    values[rng.random(shape) < 0.02] *= 2.0**-9
    values[rng.random(shape) < 0.01] *= 2.0**5
    return values.astype(np.float32)


@dataclass(frozen=True)
class Bsfp:
    """A matrix of both kinds, and how many escapes it has."""

    packed: PackedBsfp
    table: SegmentTable
    shape: tuple[int, int]

    def target(self) -> object:
        p = self.packed
        starts = self.table.row_starts(padded(self.shape[0], TILE_ROWS), p.row_shifts)
        offsets = np.concatenate([[0], np.cumsum(p.escape_counts.sum(axis=1, dtype=np.int64))])
        return _native.bsfp(
            *self.shape, self.table.float_format.name, p.codes, p.residual_low, p.residual_high,
            np.ascontiguousarray(starts.astype(np.uint16)), p.escape_counts, offsets.astype(np.int64),
            p.escape_positions, p.escape_high,
        )  # fmt: skip


def bsfp(
    patterns: np.ndarray,
    float_format: FloatFormat,
    residual_bits: int | None = None,
    row_shifts: bool | None = None,
    paper: bool = False,
) -> Bsfp:
    """Encoded by NumPy, once for all implementations."""
    shape = patterns.shape[0], patterns.shape[1]
    return _bsfp(patterns.tobytes(), shape, float_format, residual_bits, row_shifts, paper)


@cache
def _bsfp(
    content: bytes,
    shape: tuple[int, int],
    float_format: FloatFormat,
    residual_bits: int | None,
    row_shifts: bool | None,
    paper: bool,
) -> Bsfp:
    patterns = np.frombuffer(content, np.uint16).reshape(shape)
    histogram = PatternHistogram(float_format)
    histogram.add(patterns)
    table = paper_table(float_format) if paper else fit_table(histogram, residual_bits, row_shifts).table
    shifts = row_shifts_of(patterns, float_format) if table.has_row_shifts else None
    return Bsfp(encode_bsfp(patterns, table, shifts), table, shape)


def product(engine: object, matrix: object, x: F32) -> F32:
    out = np.full((len(x), matrix.shape[0]), 7, np.float32)
    matrix.multiply(engine, x, out)
    return out


def rounded_bf16(x: F32) -> F32:
    return BF16.decode(BF16.encode(x))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("float_format", [BF16, FP16])
def test_16_bit_products_are_those_of_float64_up_to_float32_sums(
    engine: object, rng: np.random.Generator, shape: tuple[int, int], float_format: FloatFormat
) -> None:
    patterns = float_format.encode(weights(rng, shape))
    x = rng.standard_normal((9, shape[1])).astype(np.float32)
    exact_x = (rounded_bf16(x) if float_format == BF16 else x).astype(np.float64)
    exact_w = float_format.decode(patterns).astype(np.float64)
    out = product(engine, _native.dense(patterns, float_format.name), x)
    bound = np.abs(exact_x) @ np.abs(exact_w).T * (shape[1] / 4 + 8) * np.finfo(np.float32).eps
    assert (np.abs(out - exact_x @ exact_w.T) <= bound).all()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("float_format", "residual_bits", "row_shifts"),
    [(BF16, 8, False), (BF16, 9, True), (FP16, 10, True), (FP16, 11, False), (FP16, 12, True)],
)
def test_bsfp_gives_the_bits_of_the_16_bit_matrix_at_every_width(
    engine: object,
    rng: np.random.Generator,
    shape: tuple[int, int],
    float_format: FloatFormat,
    residual_bits: int,
    row_shifts: bool,
) -> None:
    patterns = float_format.encode(weights(rng, shape))
    rebuilt = bsfp(patterns, float_format, residual_bits, row_shifts).target()
    dense = _native.dense(patterns, float_format.name)
    x = rng.standard_normal((70, shape[1])).astype(np.float32)
    expected = product(engine, dense, x)
    for width in WIDTHS:
        for matrix in (dense, rebuilt):
            assert np.array_equal(product(engine, matrix, x[:width]).view(np.uint32), expected[:width].view(np.uint32))


@pytest.mark.parametrize("float_format", [BF16, FP16])
@pytest.mark.parametrize("paper", [True, False])
def test_every_pattern_comes_back(
    engine: object, rng: np.random.Generator, float_format: FloatFormat, paper: bool
) -> None:
    every = rng.permutation(np.arange(65536, dtype=np.uint16)).reshape(256, 256)
    matrix = bsfp(every, float_format, None if paper else 10 if float_format == FP16 else 8, True, paper)
    assert len(matrix.packed.escape_high) > 1000
    out = np.empty_like(every)
    matrix.target().patterns(engine, 0, out)
    assert np.array_equal(out, every)
    part = np.empty_like(every[32:80])
    matrix.target().patterns(engine, 32, part)
    assert np.array_equal(part, every[32:80])


def four_bit(engine: object, matrix: object, reference: object, x: F32) -> None:
    """Same integers as the reference, so the results differ by float32 sums over blocks alone, at every width."""
    codes, scales = quantize_int8(x)
    expected = reference.multiply(x)
    num_blocks = scales.shape[1]
    magnitude = np.abs(codes).astype(np.float64).reshape(len(x), num_blocks, -1).sum(axis=2) * scales
    weight_scales = np.abs(reference.scales(0, len(reference.codes))[: matrix.shape[0], :num_blocks])
    bound = magnitude @ weight_scales.T * 127 * 2 * num_blocks * np.finfo(np.float32).eps
    for width in WIDTHS:
        found = product(engine, matrix, x[:width])
        assert (np.abs(found - expected[:width]) <= bound[:width] + 1e-30).all()


@pytest.mark.parametrize("shape", SHAPES)
def test_mxfp4_is_the_reference_up_to_the_sum_over_blocks(
    engine: object, rng: np.random.Generator, shape: tuple[int, int]
) -> None:
    codes, scales = quantize_mxfp4(weights(rng, shape))
    packed, packed_scales = pack_nibbles(pad(codes, TILE_ROWS, 1)), pack_scales(pad(scales, TILE_ROWS, 1))
    matrix = _native.four_bit_int8(*shape, packed, DOUBLED, packed_scales, 0.5)
    x = rng.standard_normal((70, shape[1])).astype(np.float32)
    four_bit(engine, matrix, mxfp4_matrix(shape, packed, packed_scales), x)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_draft_of_bsfp_is_the_reference_up_to_the_sum_over_blocks(
    engine: object, rng: np.random.Generator, shape: tuple[int, int]
) -> None:
    made = bsfp(BF16.encode(weights(rng, shape)), BF16)
    reference = bsfp_draft_matrix(shape, made.packed.codes, made.packed.scales, made.table)
    levels = made.table.signed_levels.astype(np.int8)
    matrix = _native.four_bit_int8(*shape, made.packed.codes, levels, made.packed.scales, 1.0)
    x = rng.standard_normal((70, shape[1])).astype(np.float32)
    four_bit(engine, matrix, reference, x)


@pytest.mark.parametrize("level", [127, -127, 12])
@pytest.mark.parametrize("width", [1, 3, 8])
def test_integers_agree_bit_for_bit_at_their_limits(
    engine: object, rng: np.random.Generator, level: int, width: int
) -> None:
    """All scales are powers of two and sums stay below 2^24, so every bit of the result is an integer's."""
    shape = 32, 256
    levels = rng.integers(-abs(level), abs(level) + 1, 16).astype(np.int8)
    levels[3], levels[12] = level, -level
    nibbles = rng.choice(np.array([3, 12, 5, 0], np.uint8), shape, p=[0.6, 0.2, 0.1, 0.1])
    x = rng.integers(-127, 128, (width, shape[1])).astype(np.float32)
    x[:, ::32] = 127  # so that each block's scale is 1
    x[0] = np.where(np.arange(shape[1]) % 2, 127, -127)
    expected = x.astype(np.int64) @ levels.astype(np.int64)[nibbles].T
    assert np.abs(expected).max() < 2**24
    ones = np.full((2, 8, 16), 127, np.uint8)  # 2^0
    found = product(engine, _native.four_bit_int8(*shape, pack_nibbles(nibbles), levels, ones, 1.0), x)
    assert np.array_equal(found, expected)
    groups = np.full((2, 2, 16), 0x3F80, np.uint16)
    found = product(engine, _native.four_bit_int8(*shape, pack_nibbles(nibbles), levels, groups, 1.0), x)
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("shape", SHAPES)
def test_4_bit_times_float_is_the_dequantized_product(
    engine: object, rng: np.random.Generator, shape: tuple[int, int]
) -> None:
    made = bsfp(FP16.encode(weights(rng, shape) * np.float32(0.01)), FP16, paper=True)
    reference = bsfp_draft_matrix(shape, made.packed.codes, made.packed.scales, made.table)
    matrix = _native.four_bit_float(*shape, made.packed.codes, made.table.signed_levels, made.packed.scales, 1.0)
    x = rng.standard_normal((11, shape[1])).astype(np.float32)
    dequantized = np.abs(reference.rows(np.arange(shape[0]))).astype(np.float64)
    bound = np.abs(x) @ dequantized.T * (shape[1] / 4 + 8) * np.finfo(np.float32).eps
    assert (np.abs(product(engine, matrix, x) - reference.multiply(x)) <= bound).all()


def test_a_token_that_is_not_finite_gets_nans_from_a_draft_and_leaves_others_alone(
    engine: object, rng: np.random.Generator
) -> None:
    codes, scales = quantize_mxfp4(weights(rng, (32, 64)))
    matrix = _native.four_bit_int8(32, 64, pack_nibbles(codes), DOUBLED, pack_scales(scales), 0.5)
    x = rng.standard_normal((3, 64)).astype(np.float32)
    clean = product(engine, matrix, x)
    x[1, 5] = np.inf
    found = product(engine, matrix, x)
    assert np.isnan(found[1]).all()
    assert np.array_equal(found[[0, 2]], clean[[0, 2]])


def test_tiny_activations_and_scales_vanish_instead_of_wrapping(engine: object) -> None:
    codes = np.full((16, 32), 7, np.uint8)
    for scale in (0, 1, 231):  # beyond 2^104 the AVX-512 kernels count 2^104
        matrix = _native.four_bit_int8(16, 32, pack_nibbles(codes), DOUBLED, np.full((1, 1, 16), scale, np.uint8), 0.5)
        for magnitude in (1e-44, 1e-37, 1e-35, 1e-30):
            found = product(engine, matrix, np.full((1, 32), magnitude, np.float32))
            exact = magnitude * 32 * 6 * 2.0 ** (scale - 127) if magnitude / 127 >= 2.0**-126 else 0.0
            assert abs(float(found[0, 0]) - exact) <= exact * 0.01 + 2.0**-126 * 127 * 32 * 12


def test_arrays_are_taken_as_they_are_or_refused(rng: np.random.Generator) -> None:
    patterns = BF16.encode(weights(rng, (32, 64)))
    with pytest.raises(TypeError):
        _native.dense(patterns.astype(np.int16), "BF16")
    with pytest.raises(TypeError):
        _native.dense(patterns[:, ::2], "BF16")
    with pytest.raises(TypeError):
        _native.dense(np.frombuffer(b"\0" * 2049, np.uint8)[1:].view(np.uint16).reshape(32, 32), "BF16")
    with pytest.raises(ValueError, match="BF16 or F16"):
        _native.dense(patterns, "F32")
    engine = _native.Engine("portable", 1)
    matrix = _native.dense(patterns, "BF16")
    out = np.empty((1, 32), np.float32)
    for x in (np.zeros((1, 64)), np.zeros((1, 63), np.float32), np.zeros(64, np.float32)):
        with pytest.raises(TypeError):
            matrix.multiply(engine, x, out)
    made = bsfp(patterns, BF16)
    counts = made.packed.escape_counts.copy()
    counts[0, 0] += 1
    with pytest.raises(ValueError, match="escape"):
        replace(made, packed=replace(made.packed, escape_counts=counts)).target()


@pytest.mark.parametrize("num_threads", [1, 2, 3, 5])
def test_threads_do_not_change_bits(rng: np.random.Generator, num_threads: int) -> None:
    patterns = BF16.encode(weights(rng, (300, 200)))
    x = rng.standard_normal((5, 200)).astype(np.float32)
    for name in IMPLEMENTATIONS:
        expected = product(_native.Engine(name, 1), _native.dense(patterns, "BF16"), x)
        found = product(_native.Engine(name, num_threads), _native.dense(patterns, "BF16"), x)
        assert np.array_equal(found.view(np.uint32), expected.view(np.uint32))
