"""Codes in reach of a weight: which they are, that each is exact, and that scales and codes chosen by them err less."""

import numpy as np
import pytest

from mxconv.arrays import U16
from mxconv.codecs.bsfp.draft import decode_draft, fit_group_scales
from mxconv.codecs.bsfp.fit import fit_table
from mxconv.codecs.bsfp.histogram import PatternHistogram, row_shifts_of
from mxconv.codecs.bsfp.packing import decode_bsfp, decode_bsfp_draft, encode_bsfp_as
from mxconv.codecs.bsfp.planes import encode_planes, planes_of
from mxconv.codecs.bsfp.reach import ReachGrid, fit_scales, reaching_table
from mxconv.codecs.bsfp.speq import paper_table
from mxconv.codecs.bsfp.table import RESIDUAL_BITS, SegmentTable
from mxconv.codecs.float16 import FORMATS, FloatFormat
from mxconv.codecs.gptq import InputFactor, compensated_codes, output_errors

CASES = [(FORMATS[name], width) for name, widths in RESIDUAL_BITS.items() for width in widths]


def matrix(float_format: FloatFormat, rows: int = 48, columns: int = 160) -> U16:
    """Weights of a Gaussian with some outliers."""
    rng = np.random.default_rng(rows)
    values = rng.standard_normal((rows, columns)) * np.where(rng.random((rows, columns)) < 0.01, 6, 1) * 0.02
    return float_format.encode(values.astype(np.float32))


def fitted(patterns: U16, float_format: FloatFormat, width: int, row_shifts: bool = False) -> SegmentTable:
    histogram = PatternHistogram(float_format)
    histogram.add(patterns)
    return fit_table(histogram, width, row_shifts).table


@pytest.mark.parametrize(("float_format", "width"), CASES)
def test_the_codes_in_reach_of_every_pattern_are_those_that_do_not_escape(
    float_format: FloatFormat, width: int
) -> None:
    """All 65,536 patterns, each with all eight codes."""
    every = np.arange(1 << 16, dtype=np.uint16)[None]
    table = reaching_table(fitted(matrix(float_format), float_format, width))
    grid = ReachGrid.of(every, table, None, np.full((1, 512), 0x3F80, np.uint16))
    is_inside = [~planes_of(every, np.full_like(every, rank, np.uint8), table).escaped for rank in range(8)]
    for rank, inside in enumerate(is_inside):
        is_reached = np.any(is_inside, axis=0)
        in_reach = (grid.lowest <= rank) & (rank <= grid.highest)
        assert np.array_equal(in_reach, inside | ~is_reached)


@pytest.mark.parametrize("row_shifts", [False, True])
@pytest.mark.parametrize(("float_format", "width"), CASES)
def test_lower_starts_reach_more_and_lose_little(float_format: FloatFormat, width: int, row_shifts: bool) -> None:
    """What a fitted table covers between its first and last start stays covered, by the same codes."""
    patterns = matrix(float_format)
    table = fitted(patterns, float_format, width, row_shifts)
    shifts = row_shifts_of(patterns, float_format) if row_shifts else None
    lower = reaching_table(table)
    assert lower.levels == table.levels and reaching_table(paper_table(float_format)) == paper_table(float_format)
    cast, magnitudes = encode_planes(patterns, table, shifts), patterns & 0x7FFF
    is_below_last = magnitudes < table.row_starts(len(patterns), shifts)[:, -1:]
    escaped = planes_of(patterns, cast.nibbles, lower, shifts).escaped
    assert not (escaped & ~cast.escaped & is_below_last).any()
    scales = np.full((len(patterns), 2), 0x3F80, np.uint16)
    numbers = [ReachGrid.of(patterns, each, shifts, scales) for each in (table, lower)]
    before, after = (np.mean(grid.highest.astype(int) - grid.lowest) for grid in numbers)
    assert after >= before + (0 if width == 10 else 0.3)  # an octave a segment leaves nothing over


def test_what_is_chosen_errs_less_and_decodes_exactly() -> None:
    float_format = FORMATS["BF16"]
    patterns = matrix(float_format)
    weights = float_format.decode(patterns).astype(np.float64)
    rng = np.random.default_rng(5)
    inputs = rng.standard_normal((400, 160)) * np.exp(rng.standard_normal(160)) @ rng.standard_normal((160, 160))
    products = inputs.T @ inputs
    table = fitted(patterns, float_format, 8)
    lower = reaching_table(table)
    nibbles = encode_planes(patterns, table).nibbles
    cast = fit_group_scales(patterns, nibbles, table)
    scales = fit_scales(patterns, lower, None, cast, (products.diagonal() / 400).astype(np.float32))
    grid = ReachGrid.of(patterns, lower, None, scales)
    nearest = grid.cast(patterns)
    codes = compensated_codes(weights, grid, InputFactor.of(products))
    errors = [
        output_errors(weights - values, products).sum()
        for values in (decode_draft(nibbles, cast, table), grid.values(nearest), grid.values(codes))
    ]
    assert errors[1] < 0.9 * errors[0] and errors[2] < 0.6 * errors[1]
    packed = encode_bsfp_as(patterns, codes, scales, lower)
    assert np.array_equal(decode_bsfp(packed, lower, patterns.shape), patterns)
    draft = decode_bsfp_draft(packed, lower, patterns.shape)
    assert np.allclose(draft, grid.values(codes), rtol=1e-6)
    # by brute force: no other code in reach lies nearer
    tried = np.abs(np.array(lower.levels)[:, None, None] * grid.scales - np.abs(weights))
    ranks = np.arange(8)[:, None, None]
    tried[(ranks < grid.lowest) | (ranks > grid.highest)] = np.inf
    assert np.allclose(np.abs(grid.values(nearest) - weights), tried.min(axis=0))
