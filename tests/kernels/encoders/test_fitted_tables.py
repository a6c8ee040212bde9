"""Row shifts, histograms and fitted tables of every implementation against NumPy's: the same numbers."""

from functools import cache

import numpy as np
import pytest
from encoder_weights import SHAPES, both, matrices, same_bits, weights
from hypothesis import given

from mxconv.codecs.bsfp import histogram as reference_histogram
from mxconv.codecs.bsfp.fit import FittedTable, fit_table
from mxconv.codecs.bsfp.histogram import PatternHistogram
from mxconv.codecs.bsfp.table import RESIDUAL_BITS
from mxconv.codecs.float16 import FloatFormat
from mxconv.kernels import encoders

_native = pytest.importorskip("mxconv.kernels._native", reason="the extension is not built on this machine")


@both
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_row_shifts_and_histograms_are_those_of_numpy(kernel: str, shape: tuple[int, int], kind: FloatFormat) -> None:
    patterns = weights(kind, shape).copy()
    patterns[0, -1] = kind.infinity  # counts, but not as energy
    sums = np.empty(len(patterns))
    _native.sum_of_squares(_native.Engine(kernel, 1), patterns, kind.name, sums)
    assert same_bits(sums, reference_histogram.sums_of_squares(patterns, kind))
    found, expected = PatternHistogram(kind), PatternHistogram(kind)
    for start in range(0, len(patterns), 16):
        encoders.add_to_histogram(found, patterns[start : start + 16])
    expected.add(patterns)
    for name in ("counts", "shifted_counts", "shifted_energy"):
        assert same_bits(getattr(found, name), getattr(expected, name)), name
    assert (found.num_rows, found.num_columns, found.num_nonfinite) == (*shape, 1)


@cache
def numpy_fits(shape: tuple[int, int], kind: FloatFormat) -> list[tuple[PatternHistogram, int | None, FittedTable]]:
    """Fitted by NumPy once for all implementations: a histogram, the residual width, the table."""
    found = []
    for patterns in (weights(kind, shape), np.zeros(shape, np.uint16), np.full(shape, 0x3DCC, np.uint16)):
        histogram = PatternHistogram(kind)
        histogram.add(patterns)
        found += [(histogram, bits, fit_table(histogram, bits)) for bits in (None, RESIDUAL_BITS[kind.name][-1])]
    return found


@both
@pytest.mark.parametrize("shape", [(1, 1), (16, 32), (48, 160), (20, 1100)], ids=str)
def test_fitted_tables_are_those_of_numpy(shape: tuple[int, int], kind: FloatFormat) -> None:
    for histogram, bits, expected in numpy_fits(shape, kind):
        assert encoders.fit_table(histogram, bits) == expected


@cache
def any_finite_patterns(kind: FloatFormat) -> tuple[PatternHistogram, FittedTable]:
    histogram = PatternHistogram(kind)
    histogram.add(np.random.default_rng(5).integers(0, kind.infinity, (256, 512)).astype(np.uint16))
    return histogram, fit_table(histogram)


@both
def test_tables_of_weights_at_every_exponent_are_those_of_numpy(kind: FloatFormat) -> None:
    histogram, expected = any_finite_patterns(kind)
    assert encoders.fit_table(histogram) == expected


@both
@given(patterns=matrices)
def test_row_shifts_of_any_patterns_are_those_of_numpy(kernel: str, kind: FloatFormat, patterns: np.ndarray) -> None:
    sums = np.empty(len(patterns))
    _native.sum_of_squares(_native.Engine(kernel, 1), patterns, kind.name, sums)
    assert same_bits(sums, reference_histogram.sums_of_squares(patterns, kind))
    assert same_bits(encoders.row_shifts_of(patterns, kind), reference_histogram.row_shifts_of(patterns, kind))
