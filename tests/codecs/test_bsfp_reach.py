"""Codes in reach of a weight, and those that clipped groups take: each is exact, and errs less."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from packages import compare, quantize

from mxconv.arrays import F64, U16
from mxconv.codecs.bsfp.draft import GROUP, decode_draft, fit_group_scales
from mxconv.codecs.bsfp.fit import fit_table
from mxconv.codecs.bsfp.histogram import PatternHistogram, row_shifts_of
from mxconv.codecs.bsfp.packing import decode_bsfp, decode_bsfp_draft, encode_bsfp, encode_bsfp_as
from mxconv.codecs.bsfp.planes import encode_planes, planes_of
from mxconv.codecs.bsfp.reach import ReachGrid, fit_scales, reaching_table
from mxconv.codecs.bsfp.speq import paper_table
from mxconv.codecs.bsfp.table import RESIDUAL_BITS, SegmentTable
from mxconv.codecs.float16 import BF16, FORMATS, FloatFormat
from mxconv.codecs.gptq import InputFactor, compensated_codes, output_errors
from mxconv.codecs.vnni8 import unpack_scales
from mxconv.kernels.encoders import cast_bsfp
from mxconv.rebuild import check_rebuild
from mxconv.verify import verify

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


CASES = [(FORMATS[name], width) for name, widths in RESIDUAL_BITS.items() for width in widths]
PYLIB = Path("examples/models/pylib-0.2m")


def clipping(float_format: FloatFormat) -> U16:
    """A Gaussian, with one weight in 400 five times as large."""
    rng = np.random.default_rng(7)
    values = rng.standard_normal((40, 300)) * np.where(rng.random((40, 300)) < 1 / 400, 5, 1) * 0.02
    return float_format.encode(values.astype(np.float32))


def fitted_without(float_format: FloatFormat, width: int = 8, row_shifts: bool = False) -> SegmentTable:
    """The table of such a Gaussian without the larger weights."""
    values = (np.random.default_rng(8).standard_normal((64, 512)) * 0.02).astype(np.float32)
    return fitted(float_format.encode(values), float_format, width, row_shifts)


def fold(terms: list[float]) -> float:
    while len(terms) > 1:
        half = len(terms) // 2
        first, middle, last = terms[:half], terms[half:-half], terms[-half:]
        terms = [a + b for a, b in zip(first, last, strict=True)] + middle
    return terms[0]


def draft_of_group(weights: F64, magnitudes: list[int], starts: list[int], table: SegmentTable, cast: float) -> F64:
    """The magnitudes of a group's draft as the specification says, weight by weight."""
    levels = [table.levels[code] for code in table.order]
    starts = [starts[code] for code in table.order]
    top = max(levels) * cast
    direct = [levels[max(sum(start <= m for start in starts) - 1, 0)] * cast for m in magnitudes]

    def error(draft: list[float]) -> float:
        ratios = [(w - q) / top for w, q in zip(weights, draft, strict=True)]
        return fold([(r * r) * (r * r) for r in ratios] + [0.0] * (GROUP - len(ratios)))

    if not max(weights) > 1.4 * top > 0:
        return np.array(direct)
    found = [(error(direct), direct)]
    for step in (1.25, 1.5, 1.75, 2, 2.5, 3, 3.5, 4):
        scale = float(BF16.decode(BF16.encode(np.array([np.float32(cast * step)], np.float32)))[0])
        draft = []
        for w, m in zip(weights, magnitudes, strict=True):
            reached = [rank for rank, start in enumerate(starts) if start <= m < start + 2**table.residual_bits]
            reached = reached or list(range(8))
            wanted = sum((a + b) / 2 * scale < w for a, b in pairwise(levels))
            draft.append(levels[min(max(wanted, reached[0]), reached[-1])] * scale)
        found.append((error(draft), draft))
    return np.array(min(found, key=lambda each: each[0])[1])  # the first of equal ones


@pytest.mark.parametrize("row_shifts", [False, True])
@pytest.mark.parametrize(("float_format", "width"), CASES)
def test_clipped_groups_are_those_of_the_specification(float_format: FloatFormat, width: int, row_shifts: bool) -> None:
    patterns = clipping(float_format)
    table, shape = fitted_without(float_format, width, row_shifts), patterns.shape
    shifts = row_shifts_of(patterns, float_format) if row_shifts else None
    before, after = encode_bsfp(patterns, table, shifts), cast_bsfp(patterns, table, shifts)
    assert np.array_equal(decode_bsfp(after, table, shape), patterns)
    for name in ("escape_counts", "escape_positions", "escape_high"):
        assert np.array_equal(getattr(after, name), getattr(before, name))
    assert not np.array_equal(after.scales, before.scales)
    scales = BF16.decode(unpack_scales(before.scales)).astype(np.float64)
    weights = np.abs(float_format.decode(patterns)).astype(np.float64)
    starts, draft = table.row_starts(len(patterns), shifts), np.abs(decode_bsfp_draft(after, table, shape))
    for row, group in np.ndindex(len(patterns), scales.shape[1]):
        place = slice(group * GROUP, (group + 1) * GROUP)
        magnitudes = [int(m) for m in patterns[row, place] & 0x7FFF]
        args = weights[row, place], magnitudes, [int(s) for s in starts[row]], table, float(scales[row, group])
        assert np.array_equal(draft_of_group(*args).astype(np.float32), draft[row, place]), (row, group)


def test_slices_of_rows_and_the_reference_give_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    patterns = clipping(BF16)
    table = fitted_without(BF16)
    whole, parts = cast_bsfp(patterns, table), [cast_bsfp(patterns[i : i + 16], table) for i in range(0, 40, 16)]
    monkeypatch.setenv("MXCONV_KERNEL", "numpy")
    reference = cast_bsfp(patterns, table)
    for name in ("codes", "residual_low", "scales"):
        assert np.array_equal(getattr(whole, name), np.concatenate([getattr(part, name) for part in parts]))
        assert np.array_equal(getattr(whole, name), getattr(reference, name))


def test_the_paper_table_and_infinities_are_left_as_they_are() -> None:
    patterns = clipping(BF16)
    table = paper_table(BF16)
    assert np.array_equal(cast_bsfp(patterns, table).scales, encode_bsfp(patterns, table).scales)
    patterns[:, ::64] = 0x7F80
    table = fitted_without(BF16)
    assert np.array_equal(cast_bsfp(patterns, table).scales, encode_bsfp(patterns, table).scales)


@pytest.mark.parametrize("rule", ["least-squares", "unclipped"])
def test_a_package_of_either_rule_is_derived_again(rule: str, tmp_path: Path) -> None:
    """The rule that a manifest names, or does not, as those of earlier versions, decides."""
    package = tmp_path / "package"
    manifest = quantize(PYLIB, package, codec="bsfp", group_scales=rule, num_threads=2)
    assert (b"group_scales" in (package / "mxconv.json").read_bytes()) == (rule == "unclipped")
    assert verify(package).ok and compare(package, PYLIB).ok
    check_rebuild(package, PYLIB)
    other = "unclipped" if rule == "least-squares" else "least-squares"
    options = manifest.options.model_copy(update={"group_scales": other})
    (package / "mxconv.json").write_bytes(manifest.model_copy(update={"options": options}).to_bytes())
    found = compare(package, PYLIB)
    assert not found.ok and any("differs from what the source encodes to" in each.detail for each in found.tensors)
