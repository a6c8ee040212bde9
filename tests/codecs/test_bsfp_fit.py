"""The fitted table: what it promises (bits, decibels), what it counts, and that it is always the same."""

import tracemalloc
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mxconv.codecs.bsfp.fit import FittedTable, fit_table
from mxconv.codecs.bsfp.histogram import PatternHistogram, row_shifts_of, shift_limits
from mxconv.codecs.bsfp.packing import PackedBsfp, decode_bsfp_draft, encode_bsfp
from mxconv.codecs.bsfp.speq import paper_table
from mxconv.codecs.bsfp.table import RESIDUAL_BITS, SegmentTable
from mxconv.codecs.float16 import BF16, FP16, MAGNITUDE_MASK, FloatFormat
from mxconv.codecs.mxfp4 import dequantize_mxfp4, quantize_mxfp4

both = pytest.mark.parametrize("kind", [BF16, FP16], ids=lambda kind: kind.name)


def uneven(kind: FloatFormat, rows: int, columns: int) -> np.ndarray:
    rng = np.random.default_rng(columns)
    return kind.encode((rng.normal(0, 1, (rows, columns)) * 2.0 ** rng.uniform(-9, 3, (rows, 1))).astype(np.float32))


@both
def test_row_shifts_are_the_root_mean_square_in_eighths_of_an_octave(kind: FloatFormat) -> None:
    patterns = uneven(kind, 200, 300)
    rms = np.sqrt((kind.decode(patterns).astype(np.float64) ** 2).mean(axis=1))
    assert row_shifts_of(patterns, kind).tolist() == np.rint(8 * np.log2(rms)).astype(int).tolist()


@both
def test_row_shifts_stop_at_what_keeps_segments_finite(kind: FloatFormat) -> None:
    least, largest = shift_limits(kind)
    ends = np.array([[1], [kind.infinity - 1], [0], [0x8000], [kind.infinity], [0x7FFF]], np.uint16)
    assert row_shifts_of(ends, kind).tolist() == [least, largest, 0, 0, 0, 0]
    assert (least, largest) == {"BF16": (-127, 127), "F16": (-80, 64)}[kind.name]


@both
def test_every_pattern_counts_where_it_is(kind: FloatFormat) -> None:
    histogram = PatternHistogram(kind)
    histogram.add(np.arange(1 << 16, dtype=np.uint16).reshape(256, 256))
    assert (histogram.counts == 2).all()
    assert histogram.num_nonfinite == 2 * (MAGNITUDE_MASK + 1 - kind.infinity)


@both
def test_a_shifted_pattern_counts_in_its_phase_below_and_above_the_bins_at_their_ends(kind: FloatFormat) -> None:
    patterns = uneven(kind, 60, 200)
    patterns[7, :3] = kind.infinity, 0x8000 | kind.infinity, 0x7FFF
    patterns[8:10] = 0
    patterns[10] = 1
    patterns[11] = kind.infinity - 1
    histogram = PatternHistogram(kind)
    histogram.add(patterns)
    counts = np.zeros((8, histogram.num_bins), np.int64)
    energy = np.zeros((8, histogram.num_bins))
    for row, shift in zip(patterns, row_shifts_of(patterns, kind).tolist(), strict=True):
        for magnitude in (row & MAGNITUDE_MASK).tolist():
            place = magnitude - shift // 8 * kind.patterns_per_octave - histogram.shifted_first
            place = min(max(place, 0), histogram.num_bins - 1)
            counts[shift % 8, place] += 1
            energy[shift % 8, place] += 4.0 ** (shift / 8) if magnitude < kind.infinity else 0
    assert (histogram.shifted_counts == counts).all()
    np.testing.assert_allclose(histogram.shifted_energy, energy, rtol=1e-12)
    assert histogram.num_nonfinite == 3


SHAPE = (256, 1024)


def fit(
    patterns: np.ndarray, kind: FloatFormat, residual_bits: int | None = None, row_shifts: bool | None = None
) -> FittedTable:
    histogram = PatternHistogram(kind)
    histogram.add(patterns)
    return fit_table(histogram, residual_bits, row_shifts)


def encode(patterns: np.ndarray, table: SegmentTable) -> PackedBsfp:
    shifts = row_shifts_of(patterns, table.float_format) if table.has_row_shifts else None
    return encode_bsfp(patterns, table, shifts)


@cache
def gaussian(kind: FloatFormat, sigma: float) -> np.ndarray:
    return kind.encode(np.random.default_rng(7).normal(0, sigma, SHAPE).astype(np.float32))


def decibels(source: np.ndarray, draft: np.ndarray) -> float:
    difference = source.astype(np.float64) - draft
    return float(10 * np.log10((source.astype(np.float64) ** 2).sum() / (difference**2).sum()))


def draft_decibels(patterns: np.ndarray, table: SegmentTable) -> float:
    draft = decode_bsfp_draft(encode(patterns, table), table, patterns.shape)  # type: ignore[arg-type]
    return decibels(table.float_format.decode(patterns), draft)


def stored_bits_per_weight(packed: PackedBsfp, num_weights: int) -> float:
    arrays = [getattr(packed, name) for name in PackedBsfp.__dataclass_fields__]
    num_bytes = sum(array.nbytes for array in arrays if array is not None) + 8 * (len(packed.codes) + 1)
    return 8 * num_bytes / num_weights


@pytest.mark.parametrize("sigma", [0.003, 0.3])
@both
def test_gaussian_weights_get_a_better_draft_than_mxfp4_in_few_bits(kind: FloatFormat, sigma: float) -> None:
    patterns = gaussian(kind, sigma)
    fitted = fit(patterns, kind)
    packed = encode(patterns, fitted.table)
    values = kind.decode(patterns)
    ours = draft_decibels(patterns, fitted.table)
    assert ours >= 19.4
    assert ours >= decibels(values, dequantize_mxfp4(*quantize_mxfp4(values))) + 0.4
    assert ours >= draft_decibels(patterns, paper_table(kind)) + 3
    bits = stored_bits_per_weight(packed, patterns.size)
    assert bits <= (12.9 if kind is BF16 else 16.2)
    assert bits == pytest.approx(fitted.bits_per_weight, abs=0.01)
    assert fitted.table.has_int8_levels


@both
def test_rows_of_different_scale_get_row_shifts_and_keep_their_draft(kind: FloatFormat) -> None:
    values = kind.decode(gaussian(kind, 0.02)) * 2.0 ** -(np.arange(SHAPE[0])[:, None] % 11)
    patterns = kind.encode(values.astype(np.float32))
    fitted = fit(patterns, kind)
    assert fitted.table.has_row_shifts
    assert draft_decibels(patterns, fitted.table) >= 19.4
    assert fitted.bits_per_weight <= (12.9 if kind is BF16 else 16.2)
    assert fit(patterns, kind, row_shifts=False).cost > fitted.cost


@pytest.mark.parametrize("row_shifts", [False, True])
@both
def test_a_few_infinities_and_nans_do_not_disturb_the_fit(kind: FloatFormat, row_shifts: bool) -> None:
    patterns = gaussian(kind, 0.02)
    damaged = patterns.copy()
    damaged[[0, 5, 200], [0, 5, 3]] = [kind.infinity, kind.infinity | 0x8001, 0x7FFF]
    expected, found = fit(patterns, kind, None, row_shifts), fit(damaged, kind, None, row_shifts)
    assert found.table.levels == pytest.approx(expected.table.levels, abs=2)
    assert found.relative_error == pytest.approx(expected.relative_error, rel=1e-3)
    assert found.num_escapes == len(encode(damaged, found.table).escape_high)


@settings(max_examples=15)
@given(st.sampled_from([BF16, FP16]), st.integers(0, 2**32 - 1), st.booleans())
def test_the_number_of_escapes_is_exact_for_any_patterns(kind: FloatFormat, seed: int, row_shifts: bool) -> None:
    rng = np.random.default_rng(seed)
    low, high = sorted(rng.integers(0, 1 << 15, 2).tolist())
    patterns = rng.integers(low, high + 1, (int(rng.integers(1, 40)), int(rng.integers(1, 40)))).astype(np.uint16)
    patterns |= (rng.integers(0, 2, patterns.shape) << 15).astype(np.uint16)
    fitted = fit(patterns, kind, int(rng.choice(RESIDUAL_BITS[kind.name])), row_shifts)
    assert fitted.num_escapes == len(encode(patterns, fitted.table).escape_high)


@both
def test_the_fit_is_deterministic_and_blind_to_the_order_of_rows_and_slices(kind: FloatFormat) -> None:
    patterns = gaussian(kind, 0.02)[:128]
    first = fit(patterns, kind)
    assert fit(patterns, kind) == first
    shuffled = np.random.default_rng(1).permutation(patterns)
    sliced = PatternHistogram(kind)
    for start in range(0, 128, 48):
        sliced.add(shuffled[start : start + 48])
    again = fit_table(sliced)
    assert again.table == first.table
    assert again.num_escapes == first.num_escapes


@both
def test_weights_at_every_exponent_are_fitted_in_bounded_memory(kind: FloatFormat) -> None:
    patterns = np.random.default_rng(0).integers(0, kind.infinity, (512, 512)).astype(np.uint16)
    histogram = PatternHistogram(kind)
    histogram.add(patterns)
    tracemalloc.start()
    try:
        fitted = fit_table(histogram)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 200_000_000
    assert fitted.num_escapes == len(encode(patterns, fitted.table).escape_high)
    assert fitted.relative_error < 0.04  # the energy is in the upper octaves, which keep the whole grid


def test_an_empty_tensor_has_a_table_too() -> None:
    fitted = fit_table(PatternHistogram(BF16))
    assert fitted.num_escapes == 0
    assert np.isfinite(fitted.cost)
