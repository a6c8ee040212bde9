"""Which codes reach a weight: any of them is exact, so the one that drafts best may be taken.

A segment covers 2**R patterns, and a cell of a fitted table, from its start to the next one, mostly far fewer. Where
starts are moved down to the one below, the level above a weight is in reach as well as those below it. Group scales may
then follow the largest weights of a group, and codes what a matrix multiplies (`codecs/gptq.py`).

Normative text: formats/bsfp.md, "Encoding"; the choices here are informative there.
"""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from mxconv.arrays import F32, F64, I8, I64, U8, U16
from mxconv.codecs.bsfp.draft import GROUP, MAX_SCALE
from mxconv.codecs.bsfp.table import NUM_CODES, SegmentTable
from mxconv.codecs.float16 import BF16, MAGNITUDE_MASK, SIGN_MASK
from mxconv.codecs.vnni8 import pad

STEPS = np.float32(2.0) ** (np.arange(-4, 17, dtype=np.float32) / 8)  # of a group's scale, times the cast's


def reaching_table(table: SegmentTable) -> SegmentTable:
    """A fitted table whose starts lie lower, as far as no weight between two starts is out of reach for that.

    A start goes down to the one below it, or to 2**R patterns below the next one, whichever is higher. The first one
    stays, and so does a table that was not fitted.
    """
    if table.kind != "fitted":
        return table
    starts = np.array(table.starts)
    floors = np.concatenate([starts[:, 2:] - table.num_patterns, starts[:, -1:] - table.num_patterns // 2], axis=1)
    lower = np.minimum(starts[:, 1:], np.maximum(starts[:, :-1], floors))
    moved = np.concatenate([starts[:, :1], lower], axis=1)
    return replace(table, starts=tuple(tuple(int(start) for start in row) for row in moved))


@dataclass(frozen=True)
class ReachGrid:
    """What each weight of a matrix may be drafted as: implements `gptq.Grid`. The table is fitted."""

    table: SegmentTable
    signs: F64  # (rows, columns) 1 or -1
    lowest: U8  # (rows, columns) the first code in reach, in the order of the starts
    highest: U8  # the last one; a weight that no code reaches escapes, and may have any
    scales: F64  # (rows, columns)

    @classmethod
    def of(cls, patterns: U16, table: SegmentTable, row_shifts: I8 | None, scales: U16) -> Self:
        """The grid of (rows, columns) patterns and (rows, num_groups) scales; starts of the table reach the weights."""
        magnitudes = (patterns & MAGNITUDE_MASK).astype(np.int32)
        starts = table.row_starts(len(patterns), row_shifts)[:, table.order, None]
        above, below = (np.zeros(patterns.shape, np.uint8) for _ in range(2))
        for rank in range(NUM_CODES):
            above += starts[:, rank] <= magnitudes
            below += starts[:, rank] + table.num_patterns <= magnitudes
        is_reached = above > below
        return cls(
            table,
            np.where(patterns & SIGN_MASK, -1.0, 1.0),
            np.where(is_reached, below, 0).astype(np.uint8),
            np.where(is_reached, above - 1, NUM_CODES - 1).astype(np.uint8),
            per_weight(scales, patterns.shape[1]),
        )

    def turned(self) -> Self:
        return replace(self, signs=self.signs.T, lowest=self.lowest.T, highest=self.highest.T, scales=self.scales.T)

    def part(self, rows: slice, order: I64) -> Self:
        signs, scales = (np.ascontiguousarray(each[rows].T[order]) for each in (self.signs, self.scales))
        lowest, highest = (np.ascontiguousarray(each[rows].T[order]) for each in (self.lowest, self.highest))
        return replace(self, signs=signs, lowest=lowest, highest=highest, scales=scales)

    def round(self, place: int, values: F64) -> tuple[U8, F64]:
        signs, scales = self.signs[place], self.scales[place]
        ranks = self._nearest(values * signs, scales, self.lowest[place], self.highest[place])
        codes = self.table.order.astype(np.uint8)[ranks] | (signs < 0).astype(np.uint8) << np.uint8(3)
        return codes, signs * self._levels[ranks] * scales

    def values(self, codes: U8) -> F64:
        made: F64 = self.table.signed_levels.astype(np.float64)[codes] * self.scales
        return made

    def cast(self, patterns: U16) -> U8:
        """The nibbles nearest to the weights."""
        weights = np.abs(self.table.float_format.decode(patterns)).astype(np.float64)
        ranks = self._nearest(weights, self.scales, self.lowest, self.highest)
        nibbles: U8 = self.table.order.astype(np.uint8)[ranks] | (self.signs < 0).astype(np.uint8) << np.uint8(3)
        return nibbles

    @property
    def _levels(self) -> F64:
        return np.array(self.table.levels, np.float64)[self.table.order]

    def _nearest(self, magnitudes: F64, scales: F64, lowest: U8, highest: U8) -> NDArray[np.uint8]:
        """Ranks of the levels nearest to some magnitudes, among those in reach."""
        levels = self._levels
        ranks = np.zeros(magnitudes.shape, np.uint8)
        for middle in (levels[1:] + levels[:-1]) / 2:
            ranks += magnitudes > middle * scales
        return np.clip(ranks, lowest, highest)


def per_weight(scales: U16, num_columns: int) -> F64:
    """Group scales, (rows, num_groups) BF16 patterns, as the scale of each weight."""
    return np.repeat(BF16.decode(scales).astype(np.float64), GROUP, axis=1)[:, :num_columns]


def fit_scales(patterns: U16, table: SegmentTable, row_shifts: I8 | None, cast: U16, squares: F32) -> U16:
    """Group scales by what weights are multiplied by: the nearest levels in reach err least.

    Args:
        patterns: (rows, columns) uint16 weights.
        table: whose starts reach them.
        row_shifts: (rows,) int8 for a table with row shifts.
        cast: (rows, num_groups) uint16 BF16 patterns of the direct cast; scales are these times 2**(-4/8 .. 16/8).
        squares: (rows, columns) or what broadcasts to it: mean squares of the inputs of each weight.
    """
    grid = ReachGrid.of(patterns, table, row_shifts, cast)
    weights = table.float_format.decode(patterns).astype(np.float64)
    squares = np.broadcast_to(squares, patterns.shape)
    best, least = cast.copy(), np.full(cast.shape, np.inf)
    for step in STEPS:
        scales = BF16.encode(np.minimum(BF16.decode(cast) * step, MAX_SCALE).astype(np.float32))
        tried = replace(grid, scales=per_weight(scales, patterns.shape[1]))
        errors = squares * np.square(weights - tried.values(tried.cast(patterns)))
        sums = pad(errors, 1, GROUP).reshape(*cast.shape, GROUP).sum(axis=2)
        is_better = sums < least
        best, least = np.where(is_better, scales, best), np.where(is_better, sums, least)
    return best
