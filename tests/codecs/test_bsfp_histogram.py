import numpy as np
import pytest

from mxconv.codecs.bsfp.histogram import PatternHistogram, row_shifts_of, shift_limits
from mxconv.codecs.float16 import BF16, FP16, MAGNITUDE_MASK, FloatFormat

both = pytest.mark.parametrize("kind", [BF16, FP16], ids=lambda kind: kind.name)


def gaussian(kind: FloatFormat, rows: int, columns: int) -> np.ndarray:
    rng = np.random.default_rng(columns)
    return kind.encode((rng.normal(0, 1, (rows, columns)) * 2.0 ** rng.uniform(-9, 3, (rows, 1))).astype(np.float32))


@both
def test_row_shifts_are_the_root_mean_square_in_eighths_of_an_octave(kind: FloatFormat) -> None:
    patterns = gaussian(kind, 200, 300)
    rms = np.sqrt((kind.decode(patterns).astype(np.float64) ** 2).mean(axis=1))
    assert row_shifts_of(patterns, kind).tolist() == np.rint(8 * np.log2(rms)).astype(int).tolist()


@both
def test_row_shifts_stop_at_what_keeps_segments_finite(kind: FloatFormat) -> None:
    least, largest = shift_limits(kind)
    ends = np.array([[1], [kind.infinity - 1], [0], [0x8000], [kind.infinity], [0x7FFF]], np.uint16)
    assert row_shifts_of(ends, kind).tolist() == [least, largest, 0, 0, 0, 0]
    assert (least, largest) == {"BF16": (-127, 127), "F16": (-80, 64)}[kind.name]


@both
def test_slices_add_up_to_the_whole(kind: FloatFormat) -> None:
    patterns = gaussian(kind, 50, 40)
    whole, parts = PatternHistogram(kind), PatternHistogram(kind)
    whole.add(patterns)
    for start in range(0, 50, 7):
        parts.add(patterns[start : start + 7])
    assert (parts.counts == whole.counts).all()
    assert (parts.shifted_counts == whole.shifted_counts).all()
    assert (parts.shifted_energy == whole.shifted_energy).all()
    assert parts.row_shifts.tolist() == whole.row_shifts.tolist() == row_shifts_of(patterns, kind).tolist()
    assert (parts.num_rows, parts.num_columns, parts.num_weights) == (50, 40, 2000)
    assert parts.shifted_counts.sum() == 2000


@both
def test_every_pattern_counts_where_it_is(kind: FloatFormat) -> None:
    histogram = PatternHistogram(kind)
    histogram.add(np.arange(1 << 16, dtype=np.uint16).reshape(256, 256))
    assert (histogram.counts == 2).all()
    assert histogram.num_nonfinite == 2 * (MAGNITUDE_MASK + 1 - kind.infinity)


@both
def test_a_shifted_pattern_counts_in_its_phase_below_and_above_the_bins_at_their_ends(kind: FloatFormat) -> None:
    patterns = gaussian(kind, 60, 200)
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
