"""Encoders and decoders of rows: native where the extension runs, NumPy where it does not, the same bytes from both.

The choice is that of `engine.py`; `MXCONV_KERNEL=numpy` selects the reference. A call works on the thread that makes
it and lets others run meanwhile, so that a conversion may have a thread a tensor.
"""

from contextlib import suppress
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from mxconv.arrays import F32, I8, I64, U8, U16
from mxconv.codecs.bsfp import fit, packing
from mxconv.codecs.bsfp import histogram as reference_histogram
from mxconv.codecs.bsfp.clipped import GroupScales, unclip
from mxconv.codecs.bsfp.draft import COLUMN_MULTIPLE, GROUP
from mxconv.codecs.bsfp.fit import Cells, FittedTable
from mxconv.codecs.bsfp.histogram import PatternHistogram, shift_boundaries, shift_limits
from mxconv.codecs.bsfp.packing import PackedBsfp
from mxconv.codecs.bsfp.table import NUM_CODES, SegmentTable
from mxconv.codecs.e2m1 import VALUES
from mxconv.codecs.float16 import FloatFormat
from mxconv.codecs.mxfp4 import BLOCK, NonFiniteError, ScaleRule, dequantize_mxfp4, quantize_mxfp4
from mxconv.codecs.vnni8 import (
    TILE_COLUMNS,
    TILE_ELEMENTS,
    TILE_ROWS,
    pack_nibbles,
    pack_scales,
    pad,
    padded,
    unpack_nibbles,
    unpack_scales,
)
from mxconv.kernels.engine import choose_engine

with suppress(ImportError):  # where it is missing, `choose_engine` says so and NumPy runs
    from mxconv.kernels import _native
Scalar = TypeVar("Scalar", bound=np.generic)

ESCAPE_SLACK = 64  # bytes that the native encoder may overwrite after a list of escapes


def encode_mxfp4(patterns: U16, float_format: FloatFormat, scale_rule: ScaleRule = "ocp") -> tuple[U8, U8]:
    """MXFP4 of 16-bit rows, as stored.

    Returns:
        codes: (T, C, 64) uint8, see formats/mxfp4.md.
        scales: (T, blocks, 16) uint8 E8M0.

    Raises:
        NonFiniteError: a weight is not finite; it names the first one's index.
    """
    engine = _engine()
    if engine is None:
        codes, scales = quantize_mxfp4(float_format.decode(patterns), scale_rule)
        return pack_nibbles(pad(codes, TILE_ROWS, 1)), pack_scales(pad(scales, TILE_ROWS, 1))
    patterns = _plain(patterns)
    row_tiles, blocks = _row_tiles(patterns), padded(patterns.shape[1], BLOCK) // BLOCK
    codes = np.empty((row_tiles, blocks * BLOCK // TILE_COLUMNS, TILE_ELEMENTS // 2), np.uint8)
    scales = np.empty((row_tiles, blocks, TILE_ROWS), np.uint8)
    found = _native.encode_mxfp4(engine, patterns, float_format.name, scale_rule, codes, scales)
    if found >= 0:
        row, column = divmod(found, patterns.shape[1])
        raise NonFiniteError(row, column, float(float_format.decode(patterns[row, column : column + 1])[0]))
    return codes, scales


def decode_mxfp4(codes: U8, scales: U8, shape: tuple[int, int]) -> F32:
    """Values of stored MXFP4 rows, (rows, columns) without padding."""
    rows, columns = shape
    engine = _engine()
    if engine is None:
        return dequantize_mxfp4(unpack_nibbles(codes), unpack_scales(scales))[:rows, :columns]
    matrix = _native.four_bit_float(rows, columns, _plain(codes), VALUES, _plain(scales), 1.0)
    out = np.empty(shape, np.float32)
    _native.dequantize(engine, matrix, 0, out)
    return out


def row_shifts_of(patterns: U16, float_format: FloatFormat) -> I8:
    """The row shifts that mxconv chooses, (rows,) int8: `mxconv.codecs.bsfp.histogram.row_shifts_of`."""
    engine = _engine()
    if engine is None:
        return reference_histogram.row_shifts_of(patterns, float_format)
    shifts = np.empty(len(patterns), np.int8)
    _native.row_shifts(
        engine,
        _plain(patterns),
        float_format.name,
        shift_boundaries(float_format),
        shift_limits(float_format)[0],
        shifts,
    )
    return shifts


def add_to_histogram(histogram: PatternHistogram, patterns: U16) -> None:
    """Count a slice of rows: `PatternHistogram.add`."""
    engine = _engine()
    if engine is None:
        histogram.add(patterns)
        return
    patterns = _plain(patterns)
    slots, counts = histogram.make_room(row_shifts_of(patterns, histogram.float_format), patterns.shape[1])
    _native.count_patterns(engine, patterns, slots, counts)


def fit_table(
    histogram: PatternHistogram, residual_bits: int | None = None, row_shifts: bool | None = None
) -> FittedTable:
    """Choose a tensor's segments: `mxconv.codecs.bsfp.fit.fit_table`."""
    engine = _engine()
    if engine is None:
        return fit.fit_table(histogram, residual_bits, row_shifts)

    def best_cuts(cells: Cells, price: float) -> tuple[I64, float]:
        chosen = np.empty(NUM_CODES, np.int64)
        error = _native.fit_cuts(engine, _plain(cells.weights), _plain(cells.energy), cells.reach, price, chosen)
        return chosen, error

    return fit.fit_table(histogram, residual_bits, row_shifts, choose=best_cuts)


def encode_bsfp(patterns: U16, table: SegmentTable, row_shifts: I8 | None = None) -> PackedBsfp:
    """Rows as BSFP: `mxconv.codecs.bsfp.packing.encode_bsfp`."""
    engine = _engine()
    if engine is None:
        return packing.encode_bsfp(patterns, table, row_shifts)
    patterns = _plain(patterns)
    rows, columns = patterns.shape
    row_tiles, column_tiles = _row_tiles(patterns), padded(columns, COLUMN_MULTIPLE) // TILE_COLUMNS
    starts = table.row_starts(rows, row_shifts)
    codes = np.empty((row_tiles, column_tiles, TILE_ELEMENTS // 2), np.uint8)
    low = np.empty((row_tiles, column_tiles, TILE_ELEMENTS), np.uint8)
    high = np.empty((row_tiles, column_tiles, table.residual_bits - 8, TILE_ROWS), np.uint8)
    scales = np.empty((row_tiles, padded(columns, GROUP) // GROUP, TILE_ROWS), np.uint16)
    counts = np.empty((row_tiles, column_tiles), np.uint8)
    positions, high_bytes = (np.empty(low.size + ESCAPE_SLACK, np.uint8) for _ in range(2))
    num_escapes = _native.encode_bsfp(
        engine,
        patterns,
        table.float_format.name,
        table.residual_bits,
        (starts[:1] if row_shifts is None else starts).astype(np.uint16),
        table.order.astype(np.uint8),
        np.array(table.levels, np.float32),
        codes,
        low,
        high,
        scales,
        counts,
        positions,
        high_bytes,
    )
    return PackedBsfp(
        codes=codes,
        residual_low=low,
        residual_high=high,
        scales=scales,
        row_shifts=None if row_shifts is None else np.pad(row_shifts, (0, -rows % TILE_ROWS)),
        escape_counts=counts,
        escape_positions=positions[:num_escapes].copy(),  # the room after them is let go
        escape_high=high_bytes[:num_escapes].copy(),
    )


def cast_bsfp(
    patterns: U16, table: SegmentTable, row_shifts: I8 | None = None, group_scales: GroupScales = "unclipped"
) -> PackedBsfp:
    """Rows as BSFP, with the draft that `quantize` casts: clipped groups of a fitted table get another scale."""
    packed = encode_bsfp(patterns, table, row_shifts)
    if group_scales == "unclipped" and table.kind == "fitted":
        unclip(packed, patterns, table, row_shifts)
    return packed


def decode_bsfp(packed: PackedBsfp, table: SegmentTable, shape: tuple[int, int]) -> U16:
    """The exact 16-bit patterns: `mxconv.codecs.bsfp.packing.decode_bsfp`, with the same errors."""
    engine = _engine()
    if engine is None:
        return packing.decode_bsfp(packed, table, shape)
    starts = table.row_starts(len(packed.codes) * TILE_ROWS, packed.row_shifts)
    lists = packed.escape_counts, packing.escape_offsets(packed), packed.escape_positions, packed.escape_high
    planes = packed.codes, packed.residual_low, packed.residual_high, starts.astype(np.uint16)
    arrays: Any = [_plain(array) for array in (*planes, *lists)]
    try:
        matrix = _native.bsfp(*shape, table.float_format.name, *arrays)
    except (TypeError, ValueError):  # the escape lists contradict themselves; the reference says how
        return packing.decode_bsfp(packed, table, shape)
    out = np.empty(shape, np.uint16)
    matrix.patterns(engine, 0, out)
    return out


def decode_bsfp_draft(packed: PackedBsfp, table: SegmentTable, shape: tuple[int, int]) -> F32:
    """The draft's values: `mxconv.codecs.bsfp.packing.decode_bsfp_draft`."""
    engine = _engine()
    if engine is None:
        return packing.decode_bsfp_draft(packed, table, shape)
    matrix = _native.four_bit_float(*shape, _plain(packed.codes), table.signed_levels, _plain(packed.scales), 1.0)
    out = np.empty(shape, np.float32)
    _native.dequantize(engine, matrix, 0, out)
    return out


def _engine() -> "_native.Engine | None":
    return choose_engine(num_threads=1)


def _row_tiles(patterns: U16) -> int:
    return padded(len(patterns), TILE_ROWS) // TILE_ROWS


def _plain(array: NDArray[Scalar]) -> NDArray[Scalar]:
    """The array itself, or a copy in C order where it is strided or lies at an odd byte, as in others' files."""
    return np.require(array, requirements=["C", "A"])
