"""Groups of the direct cast whose largest weights its levels clip: a larger scale for them, with codes that reach.

The largest level of a fitted table lies at some 2.6 standard deviations, and a least-squares scale does not move for
one weight in 128. Such weights say little in a sum of squares, but they are the ones that meet a model's largest
activations, so the scale is chosen by fourth powers here. Every weight takes a code that reaches it: none escapes for
that, and the segments stay as they were fitted.

Normative text: formats/bsfp.md, "Clipped groups".
"""

from dataclasses import replace
from typing import Literal

import numpy as np

from mxconv.arrays import F64, I8, I64, U16
from mxconv.codecs.bsfp.draft import GROUP, MAX_SCALE
from mxconv.codecs.bsfp.packing import PackedBsfp
from mxconv.codecs.bsfp.planes import planes_of
from mxconv.codecs.bsfp.reach import ReachGrid
from mxconv.codecs.bsfp.table import SegmentTable
from mxconv.codecs.float16 import BF16, MAGNITUDE_MASK
from mxconv.codecs.fold import fold
from mxconv.codecs.vnni8 import TILE_COLUMNS, TILE_ROWS, pad, unpack_scales

GroupScales = Literal["least-squares", "unclipped"]
CLIPPED = 1.4  # times its largest level: what the largest weight of a clipped group exceeds
STEPS = (1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0)  # of a scale, tried in order: exact in three bits
MAX_GROUPS = 4096  # that are fitted at a time


def unclip(packed: PackedBsfp, patterns: U16, table: SegmentTable, row_shifts: I8 | None = None) -> None:
    """Replace scales, codes and residuals of the clipped groups of rows that were cast, in place.

    Args:
        packed: the direct cast of these rows.
        patterns: (rows, columns) uint16.
        table: a fitted one.
        row_shifts: (rows,) int8 for a table with row shifts.
    """
    num_rows, num_columns = patterns.shape
    groups = pad(patterns, 1, GROUP).reshape(num_rows, -1, GROUP)
    largest = groups & MAGNITUDE_MASK
    while largest.shape[2] > 1:  # by halves: NumPy is slow along short axes
        half = largest.shape[2] // 2
        largest = np.maximum(largest[:, :, :half], largest[:, :, half:])
    largest = largest[:, :, 0]
    is_finite = largest < table.float_format.infinity
    amax = table.float_format.decode(np.where(is_finite, largest, 0).astype(np.uint16)).astype(np.float64)
    tops = max(table.levels) * BF16.decode(unpack_scales(packed.scales)[:num_rows]).astype(np.float64)
    rows, places = np.nonzero((tops > 0) & (amax > CLIPPED * tops))
    for begin in range(0, len(rows), MAX_GROUPS):
        row, place = rows[begin : begin + MAX_GROUPS], places[begin : begin + MAX_GROUPS]
        shifts = None if row_shifts is None else row_shifts[row]
        _refit(packed, groups[row, place], table, shifts, row, place, num_columns)


def _refit(
    packed: PackedBsfp,
    patterns: U16,
    table: SegmentTable,
    row_shifts: I8 | None,
    rows: I64,
    places: I64,
    num_columns: int,
) -> None:
    """Fit clipped groups, (groups, 128) patterns of these rows and places, and write what is better there."""
    is_weight = places[:, None] * GROUP + np.arange(GROUP) < num_columns
    tiles, lanes = rows // TILE_ROWS, rows % TILE_ROWS
    cast = packed.scales[tiles, places, lanes]
    grid = ReachGrid.of(patterns, table, row_shifts, cast[:, None])
    weights = np.where(is_weight, table.float_format.decode(patterns), 0).astype(np.float64)
    unit = (max(table.levels) * BF16.decode(cast).astype(np.float64))[:, None]

    def errors(values: F64) -> F64:
        with np.errstate(over="ignore"):  # an infinite error is no smaller one
            return fold(np.square(np.square(np.where(is_weight, (weights - values) / unit, 0))))

    per_tile = -(-GROUP // TILE_COLUMNS)
    columns = places[:, None] * per_tile + np.arange(per_tile)
    group, tile = np.nonzero(columns < packed.codes.shape[1])  # the last group may be shorter
    spot = tiles[group], columns[group, tile], lanes[group]
    codes_of = packed.codes.reshape(*packed.codes.shape[:2], TILE_ROWS, -1)
    stored = np.zeros((len(rows), per_tile, TILE_COLUMNS // 2), np.uint8)
    stored[group, tile] = codes_of[spot]
    nibbles = np.concatenate([stored & 0xF, stored >> 4], axis=2).reshape(patterns.shape)
    least, best, scales = errors(grid.values(nibbles)), nibbles, cast
    for step in STEPS:
        tried = BF16.encode(np.minimum(BF16.decode(cast) * np.float32(step), MAX_SCALE).astype(np.float32))
        there = replace(grid, scales=BF16.decode(tried)[:, None].astype(np.float64))
        nibbles = there.cast(patterns)
        found = errors(there.values(nibbles))
        is_better = found < least
        least, scales = np.where(is_better, found, least), np.where(is_better, tried, scales)
        best = np.where(is_better[:, None], nibbles, best)

    planes = planes_of(patterns, best, table, row_shifts)
    nibbles, residuals = (
        np.where(is_weight, each, 0).reshape(len(rows), per_tile, TILE_COLUMNS)[group, tile]
        for each in (planes.nibbles, planes.residuals)
    )
    packed.scales[tiles, places, lanes] = scales
    codes_of[spot] = (nibbles[:, : TILE_COLUMNS // 2] | nibbles[:, TILE_COLUMNS // 2 :] << 4).astype(np.uint8)
    packed.residual_low.reshape(*packed.codes.shape[:2], TILE_ROWS, -1)[spot] = (residuals & 0xFF).astype(np.uint8)
    for plane in range(packed.residual_high.shape[2]):
        bits = (residuals >> (8 + plane) & 1).astype(np.uint8)
        packed.residual_high[spot[0], spot[1], plane, spot[2]] = np.packbits(bits, axis=1, bitorder="little")[:, 0]
