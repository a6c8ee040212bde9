"""Bits in, the same bits out: over all patterns and for any valid table; escape lists that contradict themselves."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mxconv.codecs.bsfp.fit import fit_table
from mxconv.codecs.bsfp.histogram import PatternHistogram
from mxconv.codecs.bsfp.packing import PackedBsfp, decode_bsfp, encode_bsfp
from mxconv.codecs.bsfp.planes import decode_planes, encode_planes, restore_escapes
from mxconv.codecs.bsfp.speq import paper_table
from mxconv.codecs.bsfp.table import RESIDUAL_BITS, SegmentTable
from mxconv.codecs.float16 import BF16, FP16, MAGNITUDE_MASK, FloatFormat
from mxconv.errors import CodecError

ALL = np.arange(1 << 16, dtype=np.uint16).reshape(256, 256)
KINDS = [BF16, FP16]


@cache
def fitted_table(kind: FloatFormat, residual_bits: int, row_shifts: bool) -> SegmentTable:
    weights = np.random.default_rng(1).normal(0, 0.02, (64, 256)).astype(np.float32)
    histogram = PatternHistogram(kind)
    histogram.add(kind.encode(weights))
    return fit_table(histogram, residual_bits, row_shifts).table


def hand_made(kind: FloatFormat, residual_bits: int) -> list[SegmentTable]:
    """At both ends of the finite patterns, all starts equal, overlapping, apart, unordered."""
    limit = kind.infinity - (1 << residual_bits)
    middle = limit // 2
    width = 1 << residual_bits
    rows = [
        (0,) * 8,
        (limit,) * 8,
        (0, 0, 1, 1, limit - 1, limit - 1, limit, limit),
        tuple(min(middle + code * width, limit) for code in range(8)),
        tuple(middle + code for code in range(8)),
        (middle, 5, limit, 0, middle + 1, 77, middle - 1, 5),
    ]
    return [SegmentTable(kind, residual_bits, (row,), (1.0,) * 8) for row in rows]


def tables() -> list[object]:
    found = []
    for kind in KINDS:
        found.append(pytest.param(paper_table(kind), id=f"{kind.name} paper"))
        for width in RESIDUAL_BITS[kind.name]:
            for shifts in (False, True):
                name = f"{kind.name} fitted R={width}{' row shifts' if shifts else ''}"
                found.append(pytest.param(fitted_table(kind, width, shifts), id=name))
            made = hand_made(kind, width)
            found += [pytest.param(table, id=f"{kind.name} hand-made {i} R={width}") for i, table in enumerate(made)]
    return found


def row_shifts_for(table: SegmentTable, num_rows: int) -> np.ndarray | None:
    """Shifts from the least to the largest that keep this table's segments finite."""
    if not table.has_row_shifts:
        return None
    starts, limit = np.array(table.starts), table.float_format.infinity - table.num_patterns
    octave = table.float_format.patterns_per_octave
    least, largest = -(int(starts.min()) // octave) * 8, (limit - int(starts.max())) // octave * 8 + 7
    return np.linspace(max(least, -128), min(largest, 127), num_rows).astype(np.int8)


@pytest.mark.parametrize("table", tables())
def test_all_65536_patterns_survive(table: SegmentTable) -> None:
    shifts = row_shifts_for(table, len(ALL))
    planes = encode_planes(ALL, table, shifts)
    starts = table.row_starts(len(ALL), shifts)
    magnitudes = (ALL & MAGNITUDE_MASK).astype(np.int64)
    assert ((planes.nibbles >> 3) == (ALL >> 15)).all()
    # the code is the segment with the largest start not above the pattern, or the lowest one
    own = np.take_along_axis(starts, (planes.nibbles & 7).astype(np.intp), axis=1)
    below = np.where(starts[:, None] <= magnitudes[:, :, None], starts[:, None], -1).max(axis=2)
    assert (own == np.where(below >= 0, below, starts.min(axis=1)[:, None])).all()
    # and what escapes is exactly what that segment does not cover
    offsets = magnitudes - own
    assert (planes.escaped == ((offsets < 0) | (offsets >= table.num_patterns))).all()
    assert (planes.residuals < table.num_patterns).all()
    assert planes.escaped[magnitudes >= table.float_format.infinity].all()

    restored = decode_planes(planes.nibbles, planes.residuals, table, shifts)
    assert ((restored ^ ALL) & 0xFF == 0).all()
    restore_escapes(restored, planes.escaped, (ALL[planes.escaped] >> 8).astype(np.uint8))
    assert (restored == ALL).all()

    packed = encode_bsfp(ALL, table, shifts)
    assert len(packed.escape_high) == planes.escaped.sum()
    assert (decode_bsfp(packed, table, (256, 256)) == ALL).all()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_code_with_every_residual_and_shift_is_finite(kind: FloatFormat) -> None:
    """So padding, and bytes that mean nothing, still decode to numbers."""
    for width in RESIDUAL_BITS[kind.name]:
        table = fitted_table(kind, width, True)
        shifts = row_shifts_for(table, 16)
        nibbles = np.tile(np.arange(16, dtype=np.uint8), (16, 1))
        for residual in (0, table.num_patterns - 1):
            residuals = np.full(nibbles.shape, residual, np.uint16)
            assert np.isfinite(kind.decode(decode_planes(nibbles, residuals, table, shifts))).all()


@st.composite
def any_table(draw: st.DrawFn) -> tuple[SegmentTable, np.ndarray | None, np.ndarray]:
    """A valid table (equal starts likely), shifts that fit it, and patterns near its starts or anywhere."""
    kind = draw(st.sampled_from(KINDS))
    residual_bits = draw(st.sampled_from(RESIDUAL_BITS[kind.name]))
    limit = kind.infinity - (1 << residual_bits)
    has_shifts = draw(st.booleans())
    low, high = (limit // 4, limit // 4 * 3) if has_shifts else (0, limit)
    pool = draw(st.lists(st.integers(low, high), min_size=1, max_size=8))
    eight = st.lists(st.builds(lambda start, step: min(start + step, limit), st.sampled_from(pool), st.integers(0, 3)),
                     min_size=8, max_size=8)  # fmt: skip
    rows = np.array([draw(eight) for _ in range(8 if has_shifts else 1)])
    order = np.argsort(rows[0], kind="stable")
    rows[1:, order] = np.sort(rows[1:], axis=1)  # all phases order the codes alike
    starts = tuple(tuple(row) for row in rows.tolist())
    table = SegmentTable(kind, residual_bits, starts, tuple(map(float, range(8))))
    num_rows, num_columns = draw(st.integers(1, 20)), draw(st.integers(1, 140))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    patterns = rng.integers(0, 1 << 16, (num_rows, num_columns), np.uint16)
    near = rng.choice(rows.ravel(), patterns.shape) + rng.integers(-2, (1 << residual_bits) + 3, patterns.shape)
    patterns = np.where(rng.random(patterns.shape) < 0.5, near.clip(0, 0xFFFF).astype(np.uint16), patterns)
    octaves = limit // 4 // kind.patterns_per_octave - 1
    bound = min(127, 8 * octaves)
    shifts = rng.integers(-bound, bound + 1, num_rows).astype(np.int8) if has_shifts else None
    return table, shifts, patterns


@given(any_table())
def test_any_patterns_survive_any_table(case: tuple[SegmentTable, np.ndarray | None, np.ndarray]) -> None:
    table, shifts, patterns = case
    packed = encode_bsfp(patterns, table, shifts)
    decoded = decode_bsfp(packed, table, patterns.shape)  # type: ignore[arg-type]
    assert decoded.dtype == np.uint16
    assert (decoded == patterns).all()


LEVELS = (5.0, 20.0, 33.0, 46.0, 60.0, 77.0, 98.0, 120.0)
STARTS = (0x3800, 0x3880, 0x3900, 0x3940, 0x3980, 0x39C0, 0x3A00, 0x3A80)
TABLE = SegmentTable(BF16, 8, (STARTS,), LEVELS)
SHIFTED = SegmentTable(BF16, 9, (STARTS,) * 8, LEVELS)


def gaussian(rows: int, columns: int, seed: int = 1) -> np.ndarray:
    return BF16.encode(np.random.default_rng(seed).normal(0, 3e-4, (rows, columns)).astype(np.float32))


def packed_with_escapes() -> PackedBsfp:
    packed = encode_bsfp(gaussian(40, 200), TABLE)
    assert len(packed.escape_high) > 100
    return packed


def test_padding_is_zero_bytes_and_escapes_nowhere() -> None:
    packed = encode_bsfp(np.full((1, 1), 0xFFFF, np.uint16), SHIFTED, np.array([9], np.int8))
    assert packed.escape_counts.sum() == 1
    assert packed.escape_positions.tolist() == [0]
    assert packed.escape_high.tolist() == [0xFF]
    assert packed.row_shifts is not None
    assert packed.row_shifts.tolist() == [9] + [0] * 15
    assert np.count_nonzero(packed.codes) == 1
    assert np.count_nonzero(packed.scales) <= 1


def test_escape_lists_of_other_lengths_than_the_counts_say_are_an_error() -> None:
    packed = packed_with_escapes()
    total = len(packed.escape_high)
    counts = packed.escape_counts.copy()
    counts.flat[np.argmax(counts)] -= 1
    message = (
        r"^escapes: counts sum to {}, but {} positions and {} high bytes are there; all three must agree\. The file"
    )
    for damaged, numbers in [
        (replace(packed, escape_counts=counts), (total - 1, total, total)),
        (replace(packed, escape_positions=packed.escape_positions[:-1]), (total, total - 1, total)),
        (replace(packed, escape_high=packed.escape_high[:-2]), (total, total, total - 2)),
    ]:
        with pytest.raises(CodecError, match=message.format(*numbers)):
            decode_bsfp(damaged, TABLE, (40, 200))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a, b: (a, 128), "position 128; 0 to 127 is required"),
        (lambda a, b: (a, a), "a position occurs twice in a tile; each must be named once"),
        (lambda a, b: (b, a), "positions in a tile do not ascend, which is required"),
    ],
)
def test_escape_positions_that_contradict_each_other_are_an_error(change: Any, message: str) -> None:
    packed = packed_with_escapes()
    tiles = np.repeat(np.arange(packed.escape_counts.size), packed.escape_counts.ravel())
    first = int(np.flatnonzero(np.diff(tiles) == 0)[0])  # its successor lies in the same tile
    positions = packed.escape_positions.copy()
    positions[first : first + 2] = change(*positions[first : first + 2])
    with pytest.raises(CodecError, match=rf"^escapes: {message}\. The file is damaged\.$"):
        decode_bsfp(replace(packed, escape_positions=positions), TABLE, (40, 200))


def test_a_count_moved_to_another_tile_never_passes_unnoticed() -> None:
    """It decodes to an error or to other weights; file hashes tell the rest."""
    packed = packed_with_escapes()
    original = decode_bsfp(packed, TABLE, (40, 200))
    rng = np.random.default_rng(3)
    for _ in range(100):
        counts = packed.escape_counts.copy()
        source, target = rng.choice(np.flatnonzero(counts), 2, replace=False)
        counts.flat[source] -= 1
        counts.flat[target] += 1
        try:
            decoded = decode_bsfp(replace(packed, escape_counts=counts), TABLE, (40, 200))
        except CodecError:
            continue
        assert (decoded != original).any()
