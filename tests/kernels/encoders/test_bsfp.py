"""BSFP by the encoders of every implementation against the NumPy codec: the same bytes for any weights and table, and
the same row shifts, histograms and fitted tables.
"""

import json
from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from encoder_weights import SHAPES, VECTORS, both, matrices, same_bits, weights
from hypothesis import given
from hypothesis import strategies as st

from mxconv.codecs.bsfp import fit, packing
from mxconv.codecs.bsfp import histogram as reference_histogram
from mxconv.codecs.bsfp.fit import FittedTable
from mxconv.codecs.bsfp.histogram import PatternHistogram
from mxconv.codecs.bsfp.packing import PackedBsfp
from mxconv.codecs.bsfp.speq import paper_table
from mxconv.codecs.bsfp.table import RESIDUAL_BITS, SegmentTable
from mxconv.codecs.float16 import BF16, FORMATS, FP16, FloatFormat
from mxconv.errors import CodecError
from mxconv.kernels import encoders
from mxconv.kernels.encoders import fit_table

_native = pytest.importorskip("mxconv.kernels._native", reason="the extension is not built on this machine")
FIELDS = [field.name for field in fields(PackedBsfp)]


def tables(kind: FloatFormat) -> dict[str, SegmentTable]:
    histogram = PatternHistogram(kind)
    histogram.add(weights(kind, (48, 160)))
    found = {"paper": paper_table(kind)}
    for bits in RESIDUAL_BITS[kind.name]:
        found[f"fitted {bits}"] = fit_table(histogram, bits, False).table
        found[f"shifted {bits}"] = fit_table(histogram, bits, True).table
    limit = kind.infinity - (1 << RESIDUAL_BITS[kind.name][0])
    starts = tuple(min(limit, k * kind.patterns_per_octave) for k in (5, 5, 0, 17, limit, 1, 4, 9))  # two are equal
    levels = (3.75, 0.0, 65536.0, 1e-30, 0.1, 7.0, 1 / 3, 100.0)
    return found | {"odd": SegmentTable(kind, RESIDUAL_BITS[kind.name][0], (starts,), levels)}


TABLES = {kind.name: tables(kind) for kind in (BF16, FP16)}
every_table = pytest.mark.parametrize(
    "table", [pytest.param(table, id=f"{name} {kind}") for kind in TABLES for name, table in TABLES[kind].items()]
)


def shifts_for(table: SegmentTable, patterns: np.ndarray) -> np.ndarray | None:
    return reference_histogram.row_shifts_of(patterns, table.float_format) if table.has_row_shifts else None


def check_bsfp(found: PackedBsfp, expected: PackedBsfp) -> None:
    for name in FIELDS:
        left, right = getattr(found, name), getattr(expected, name)
        assert (left is None) == (right is None), name
        assert left is None or same_bits(left, right), name


@every_table
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bsfp_is_that_of_numpy_and_comes_back(shape: tuple[int, int], table: SegmentTable) -> None:
    patterns = weights(table.float_format, shape)
    shifts = shifts_for(table, patterns)
    packed = encoders.encode_bsfp(patterns, table, shifts)
    check_bsfp(packed, packing.encode_bsfp(patterns, table, shifts))
    assert same_bits(encoders.decode_bsfp(packed, table, shape), patterns)
    assert same_bits(encoders.decode_bsfp_draft(packed, table, shape), packing.decode_bsfp_draft(packed, table, shape))


@every_table
@pytest.mark.parametrize("columns", [32, 256, 1024])
def test_bsfp_of_all_65536_patterns_is_that_of_numpy_and_comes_back(columns: int, table: SegmentTable) -> None:
    patterns = np.arange(1 << 16, dtype=np.uint16).reshape(-1, columns)
    shifts = np.resize(np.arange(-70, 60, 7), len(patterns)).astype(np.int8) if table.has_row_shifts else None
    packed = encoders.encode_bsfp(patterns, table, shifts)
    check_bsfp(packed, packing.encode_bsfp(patterns, table, shifts))
    assert same_bits(encoders.decode_bsfp(packed, table, patterns.shape), patterns)


@st.composite
def any_table(draw: Callable[..., Any]) -> SegmentTable:
    kind = FORMATS[draw(st.sampled_from(["BF16", "F16"]))]
    bits = draw(st.sampled_from(RESIDUAL_BITS[kind.name]))
    starts = draw(st.lists(st.integers(0, kind.infinity - (1 << bits)), min_size=8, max_size=8))
    integers = st.lists(st.integers(0, 127).map(float), min_size=8, max_size=8)
    levels = draw(integers | st.lists(st.floats(0, 65536, width=32), min_size=8, max_size=8))
    return SegmentTable(kind, bits, (tuple(starts),), tuple(levels))


@given(table=any_table(), patterns=matrices)
def test_bsfp_of_any_patterns_and_table_is_that_of_numpy(table: SegmentTable, patterns: np.ndarray) -> None:
    packed = encoders.encode_bsfp(patterns, table)
    check_bsfp(packed, packing.encode_bsfp(patterns, table))
    assert same_bits(encoders.decode_bsfp(packed, table, patterns.shape), patterns)


def test_bsfp_vectors() -> None:
    for case in json.loads((VECTORS / "bsfp.json").read_text())["matrices"]:
        given_table = case["table"]
        starts = tuple(tuple(row) for row in given_table["starts"])
        kind, bits = FORMATS[given_table["dtype"]], given_table["residual_bits"]
        table = SegmentTable(kind, bits, starts, tuple(given_table["levels"]), given_table["kind"])
        text = case["patterns"]
        patterns = np.array([[int(row[i : i + 4], 16) for i in range(0, len(row), 4)] for row in text], np.uint16)
        shifts = None if case["row_shifts"] is None else np.array(case["row_shifts"], np.int8)[: case["rows"]]
        packed = encoders.encode_bsfp(patterns, table, shifts)
        for name in ("codes", "residual_low", "residual_high", "escape_high"):
            assert getattr(packed, name).tobytes().hex() == case[name], name
        assert packed.scales.astype(">u2").tobytes().hex() == case["scales"]
        assert packed.escape_counts.ravel().tolist() == case["escape_counts"]
        assert packed.escape_positions.tolist() == case["escape_positions"]
        assert encoders.decode_bsfp_draft(packed, table, patterns.shape).astype(">f4").tobytes().hex() == "".join(
            case["draft"]
        )


@both
def test_strided_and_misplaced_rows_are_encoded_as_they_read(kind: FloatFormat) -> None:
    patterns = weights(kind, (48, 160))
    table = TABLES[kind.name]["paper"]
    odd = np.frombuffer(b"x" + patterns.tobytes(), np.uint8)[1:].view(np.uint16).reshape(patterns.shape)
    wide = np.repeat(patterns, 2, axis=1)[:, ::2]
    assert not odd.flags.aligned or not odd.ctypes.data % 2
    for same in (odd, wide, np.asfortranarray(patterns)):
        assert all(map(same_bits, encoders.encode_mxfp4(same, kind), encoders.encode_mxfp4(patterns, kind)))
        check_bsfp(encoders.encode_bsfp(same, table), encoders.encode_bsfp(patterns, table))
        assert same_bits(encoders.row_shifts_of(same, kind), encoders.row_shifts_of(patterns, kind))


def test_contradicting_escapes_are_refused_as_numpy_refuses_them() -> None:
    patterns, table = weights(BF16, (31, 129)), TABLES["BF16"]["paper"]
    packed = encoders.encode_bsfp(patterns, table)
    assert packed.escape_counts[0, 0] >= 2
    positions = packed.escape_positions
    large, doubled, swapped = positions.copy(), positions.copy(), positions.copy()
    large[5], doubled[1], swapped[:2] = 128, positions[0], positions[1::-1]
    for damage, message in (
        ({"escape_high": packed.escape_high[:-1]}, "counts sum to"),
        ({"escape_positions": large}, "0 to 127 is required"),
        ({"escape_positions": doubled}, "occurs twice"),
        ({"escape_positions": swapped}, "do not ascend"),
    ):
        for decode in (encoders.decode_bsfp, packing.decode_bsfp):
            with pytest.raises(CodecError, match=message):
                decode(replace(packed, **damage), table, patterns.shape)


def test_arrays_of_another_kind_are_a_type_error(kernel: str) -> None:
    engine = _native.Engine(kernel, 1)
    codes, scales = np.empty((1, 4, 64), np.uint8), np.empty((1, 1, 16), np.uint8)
    good = np.zeros((16, 32), np.uint16)
    assert _native.encode_mxfp4(engine, good, "BF16", "ocp", codes, scales) == -1
    for bad in (good.astype(np.int16), good.astype(np.int64), good[0], good.T, good[:, ::2], good.tolist()):
        with pytest.raises(TypeError):
            _native.encode_mxfp4(engine, bad, "BF16", "ocp", codes, scales)
    with pytest.raises(TypeError, match=r"codes: shape \(1, 4, 63\); \(1, 4, 64\) is required"):
        _native.encode_mxfp4(engine, good, "BF16", "ocp", np.empty((1, 4, 63), np.uint8), scales)
    with pytest.raises(TypeError, match="scales: shape"):
        _native.encode_mxfp4(engine, good, "BF16", "ocp", codes, np.empty((1, 2, 16), np.uint8))
    with pytest.raises(ValueError, match="scale_rule must be"):
        _native.encode_mxfp4(engine, good, "BF16", "nearest", codes, scales)
    with pytest.raises(ValueError, match="slots must be rows of counts"):
        _native.count_patterns(engine, good, np.full(16, 2), np.zeros((2, 1 << 15), np.int64))


# ---- row shifts, histograms and tables ----


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
        found += [(histogram, bits, fit.fit_table(histogram, bits)) for bits in (None, RESIDUAL_BITS[kind.name][-1])]
    return found


@both
@pytest.mark.parametrize("shape", [(1, 1), (16, 32), (48, 160), (20, 1100)], ids=str)
def test_fitted_tables_are_those_of_numpy(shape: tuple[int, int], kind: FloatFormat) -> None:
    for histogram, bits, expected in numpy_fits(shape, kind):
        assert fit_table(histogram, bits) == expected


@cache
def any_finite_patterns(kind: FloatFormat) -> tuple[PatternHistogram, FittedTable]:
    histogram = PatternHistogram(kind)
    histogram.add(np.random.default_rng(5).integers(0, kind.infinity, (256, 512)).astype(np.uint16))
    return histogram, fit.fit_table(histogram)


@both
def test_tables_of_weights_at_every_exponent_are_those_of_numpy(kind: FloatFormat) -> None:
    histogram, expected = any_finite_patterns(kind)
    assert fit_table(histogram) == expected


@both
@given(patterns=matrices)
def test_row_shifts_of_any_patterns_are_those_of_numpy(kernel: str, kind: FloatFormat, patterns: np.ndarray) -> None:
    sums = np.empty(len(patterns))
    _native.sum_of_squares(_native.Engine(kernel, 1), patterns, kind.name, sums)
    assert same_bits(sums, reference_histogram.sums_of_squares(patterns, kind))
    assert same_bits(encoders.row_shifts_of(patterns, kind), reference_histogram.row_shifts_of(patterns, kind))
