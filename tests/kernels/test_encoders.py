"""Encoders of every implementation against the NumPy codecs: the same bytes for any weights, scale rule and table.

Row shifts, histograms and fitted tables are the same too.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
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
from mxconv.codecs.mxfp4 import SCALE_RULES, NonFiniteError, dequantize_mxfp4, quantize_mxfp4
from mxconv.codecs.vnni8 import pack_nibbles, pack_scales, pad, unpack_nibbles, unpack_scales
from mxconv.errors import CodecError
from mxconv.kernels import encoders
from mxconv.kernels.encoders import fit_table
from mxconv.kernels.engine import native_names

_native = pytest.importorskip("mxconv.kernels._native", reason="the extension is not built on this machine")


@pytest.fixture(autouse=True, scope="module", params=native_names())
def kernel(request: pytest.FixtureRequest) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MXCONV_KERNEL", request.param)
        yield request.param


VECTORS = Path(__file__).parents[2] / "formats" / "vectors"
SHAPES = [(1, 1), (1, 300), (15, 31), (16, 32), (17, 33), (31, 129), (20, 1100)]
both = pytest.mark.parametrize("kind", [BF16, FP16], ids=lambda kind: kind.name)


def same_bits(found: np.ndarray, expected: np.ndarray) -> bool:
    return found.dtype == expected.dtype and found.shape == expected.shape and found.tobytes() == expected.tobytes()


@cache
def weights(kind: FloatFormat, shape: tuple[int, int]) -> np.ndarray:
    """Gaussian rows octaves apart; outliers, both zeros, blocks and rows of zeros, subnormals, the largest numbers."""
    rng = np.random.default_rng(shape[0] * 10_000 + shape[1])
    values = rng.standard_normal(shape) * 2.0 ** rng.integers(-9, 9, (shape[0], 1))
    values[rng.random(shape) < 0.02] *= 2.0**-9
    values[rng.random(shape) < 0.02] *= 2.0**5
    patterns = kind.encode(values.astype(np.float32))
    patterns[rng.random(shape) < 0.05] &= 0x8000
    for row in range(0, shape[0], 3):
        first = int(rng.integers(shape[1]))
        content = row // 3 % 4
        block = patterns[row, first // 32 * 32 : first // 32 * 32 + 32]
        if content == 0:  # around the smallest normal number
            block[:] = rng.integers(0, 40 * kind.patterns_per_octave // 8, block.shape) | (block & 0x8000)
        elif content == 1:
            block &= 0x8000
        elif content == 2:
            block[:] = kind.infinity - 1 - rng.integers(0, 4 * kind.patterns_per_octave, block.shape)
        else:
            patterns[row] &= 0x8000
    assert ((patterns & 0x7FFF) < kind.infinity).all()
    patterns.flags.writeable = False
    return patterns


any_matrix = arrays.arrays(np.uint16, arrays.array_shapes(min_dims=2, max_dims=2, max_side=70))


# ---- MXFP4 ----

every_rule = pytest.mark.parametrize("rule", SCALE_RULES)


@cache
def every_block(kind: FloatFormat) -> np.ndarray:
    """Each finite pattern as the largest of its block, and each below largest ones all over the range: (n, 32)."""
    finite = np.arange(kind.infinity, dtype=np.uint16)
    signed = np.concatenate([finite, finite | 0x8000])
    alone = np.zeros((len(signed), 32), np.uint16)
    alone[:, 17] = signed
    alone[1:, 3] = signed[:-1]
    largest = [
        1,
        3,
        5,
        3 * kind.patterns_per_octave // 2,
        *range(0, kind.infinity, 5 * kind.patterns_per_octave // 4 + 1),
    ]
    blocks = [alone]
    for top in [*largest[1:], kind.infinity - 1]:
        below = finite[: top + 1][-12 * kind.patterns_per_octave :]
        below = np.concatenate([below, below | 0x8000])
        block = np.full((-(-len(below) // 31), 32), top, np.uint16)
        block[:, 1:] = np.resize(below, (len(block), 31))
        blocks.append(block)
    return np.concatenate(blocks)


@cache
def mxfp4_by_numpy(kind: FloatFormat, rule: Any, shape: tuple[int, int] | None) -> tuple[np.ndarray, np.ndarray]:
    patterns = every_block(kind) if shape is None else weights(kind, shape)
    codes, scales = quantize_mxfp4(kind.decode(patterns), rule)
    return pack_nibbles(pad(codes, 16, 1)), pack_scales(pad(scales, 16, 1))


@both
@every_rule
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_mxfp4_is_that_of_numpy_at_the_edges_of_tiles(shape: tuple[int, int], rule: Any, kind: FloatFormat) -> None:
    found = encoders.encode_mxfp4(weights(kind, shape), kind, rule)
    assert all(map(same_bits, found, mxfp4_by_numpy(kind, rule, shape)))


@both
@every_rule
def test_mxfp4_of_every_finite_pattern_is_that_of_numpy(rule: Any, kind: FloatFormat) -> None:
    found = encoders.encode_mxfp4(every_block(kind), kind, rule)
    assert all(map(same_bits, found, mxfp4_by_numpy(kind, rule, None)))


@both
@every_rule
@given(patterns=any_matrix)
def test_mxfp4_of_any_finite_patterns_is_that_of_numpy(rule: Any, kind: FloatFormat, patterns: np.ndarray) -> None:
    patterns = np.where((patterns & 0x7FFF) < kind.infinity, patterns, patterns & 0x83FF).astype(np.uint16)
    codes, scales = quantize_mxfp4(kind.decode(patterns), rule)
    found = encoders.encode_mxfp4(patterns, kind, rule)
    assert same_bits(found[0], pack_nibbles(pad(codes, 16, 1)))
    assert same_bits(found[1], pack_scales(pad(scales, 16, 1)))


@both
@every_rule
@pytest.mark.parametrize("place", [(0, 0), (37, 211), (39, 299), (16, 31), (15, 32), (32, 288)], ids=str)
def test_the_first_nonfinite_weight_is_named(place: tuple[int, int], rule: Any, kind: FloatFormat) -> None:
    for pattern in (kind.infinity, kind.infinity | 0x8000, kind.infinity + 1, 0xFFFF):
        patterns = weights(kind, (20, 1100)).reshape(-1)[: 40 * 300].reshape(40, 300).copy()
        patterns[place] = patterns[39, 299] = pattern
        with pytest.raises(NonFiniteError) as caught:
            encoders.encode_mxfp4(patterns, kind, rule)
        assert (caught.value.row, caught.value.column) == place
        value = kind.decode(np.array([pattern], np.uint16))[0]
        assert str(caught.value) == f"value at index {place} is {value}; MX formats need finite values."


@both
def test_mse_chooses_the_scales_of_numpy_in_whole_tiles_of_ordinary_weights(kind: FloatFormat) -> None:
    rng = np.random.default_rng(11)
    octave = kind.patterns_per_octave
    coarse = 9 * octave + rng.integers(0, 20, (48, 512)) * (octave // 4)  # quarter octaves: many ties, equal errors
    fine = kind.encode(rng.standard_normal((48, 517), np.float32))
    for patterns in (coarse.astype(np.uint16), fine):
        codes, scales = quantize_mxfp4(kind.decode(patterns), "mse")
        found = encoders.encode_mxfp4(patterns, kind, "mse")
        assert same_bits(found[0], pack_nibbles(pad(codes, 16, 1)))
        assert same_bits(found[1], pack_scales(pad(scales, 16, 1)))
    wider = scales != quantize_mxfp4(kind.decode(fine), "ocp")[1]
    assert 0.05 < wider.mean() < 0.95


def patterns_of(rows: list[str], kind: FloatFormat) -> np.ndarray | None:
    """Rows of float32 patterns in hexadecimal as 16-bit ones, or None where they have more bits."""
    words = np.array([[int(row[i : i + 8], 16) for i in range(0, len(row), 8)] for row in rows], np.uint32)
    with np.errstate(over="ignore"):
        patterns = kind.encode(words.view(np.float32))
    return patterns if np.array_equal(kind.decode(patterns).view(np.uint32), words) else None


@both
def test_mxfp4_vectors_as_stored(kind: FloatFormat) -> None:
    vectors = json.loads((VECTORS / "mxfp4.json").read_text())
    for case in vectors["matrices"]:
        patterns = patterns_of(case["values"], kind)
        assert patterns is not None, "small numbers"
        codes, scales = encoders.encode_mxfp4(patterns, kind, case["scale_rule"])
        assert (codes.tobytes().hex(), scales.tobytes().hex()) == (case["codes"], case["scales"])
    for case in vectors["blocks"]:
        if (patterns := patterns_of([case["values"]], kind)) is None:
            continue
        for rule in SCALE_RULES:
            codes, scales = encoders.encode_mxfp4(patterns, kind, rule)
            assert "".join(f"{code:x}" for code in unpack_nibbles(codes)[0]) == case[rule]["codes"], case["name"]
            assert f"{scales[0, 0, 0]:02x}" == case[rule]["scale"], case["name"]


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


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_mxfp4_values_are_those_of_numpy(shape: tuple[int, int]) -> None:
    codes, scales = encoders.encode_mxfp4(weights(BF16, shape), BF16)
    if scales.size > 16:
        scales[0, -1, 0], scales[0, 0, 0] = 255, 254  # NaN; infinite for codes from 4 on
    expected = dequantize_mxfp4(unpack_nibbles(codes), unpack_scales(scales))[: shape[0], : shape[1]]
    found = encoders.decode_mxfp4(codes, scales, shape)
    np.testing.assert_array_equal(found, expected)
    assert (np.signbit(found) == np.signbit(expected))[~np.isnan(expected)].all()


# ---- BSFP ----

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


@given(table=any_table(), patterns=any_matrix)
def test_bsfp_of_any_patterns_and_table_is_that_of_numpy(table: SegmentTable, patterns: np.ndarray) -> None:
    packed = encoders.encode_bsfp(patterns, table)
    check_bsfp(packed, packing.encode_bsfp(patterns, table))
    assert same_bits(encoders.decode_bsfp(packed, table, patterns.shape), patterns)


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
    every_exponent = np.random.default_rng(5).integers(0, kind.infinity, (256, 512)).astype(np.uint16)
    others = every_exponent if shape == (1, 1) else np.zeros(shape, np.uint16)
    for patterns in (weights(kind, shape), others, np.full(shape, 0x3DCC, np.uint16)):
        histogram = PatternHistogram(kind)
        histogram.add(patterns)
        found += [(histogram, bits, fit.fit_table(histogram, bits)) for bits in (None, RESIDUAL_BITS[kind.name][-1])]
    return found


@both
@pytest.mark.parametrize("shape", [(1, 1), (16, 32), (48, 160), (20, 1100)], ids=str)
def test_fitted_tables_are_those_of_numpy(shape: tuple[int, int], kind: FloatFormat) -> None:
    for histogram, bits, expected in numpy_fits(shape, kind):
        assert fit_table(histogram, bits) == expected


@both
@given(patterns=any_matrix)
def test_row_shifts_of_any_patterns_are_those_of_numpy(kernel: str, kind: FloatFormat, patterns: np.ndarray) -> None:
    sums = np.empty(len(patterns))
    _native.sum_of_squares(_native.Engine(kernel, 1), patterns, kind.name, sums)
    assert same_bits(sums, reference_histogram.sums_of_squares(patterns, kind))
    assert same_bits(encoders.row_shifts_of(patterns, kind), reference_histogram.row_shifts_of(patterns, kind))
