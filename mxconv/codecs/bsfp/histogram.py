"""What the fit sees of a tensor: how often each magnitude pattern occurs, with and without row shifts.

One pass over the weights counts patterns, apart for each row shift that occurs. Two histograms follow from that. In
the first a pattern counts where it is. In the second each row is moved to a root mean square near 1 by whole octaves,
and counts in one of eight phases, by the eighth of an octave that remains; its weights carry the row's energy, since
the draft's error is measured over the tensor. What is counted are integers: no order of adding shows in the result.
"""

from dataclasses import dataclass, field
from functools import cache

import numpy as np

from mxconv.arrays import F64, I8, I64, U16
from mxconv.codecs.bsfp.draft import group_values
from mxconv.codecs.bsfp.table import SHIFTS_PER_OCTAVE
from mxconv.codecs.float16 import MAGNITUDE_MASK, FloatFormat
from mxconv.codecs.fold import fold

NUM_PATTERNS = MAGNITUDE_MASK + 1
OCTAVES_BELOW = 5  # segments of a shifted row start at most this far below its root mean square
OCTAVES_ABOVE = 3  # and at most this far above it
SPAN = 4  # octaves of the widest segment


def shift_limits(float_format: FloatFormat) -> tuple[int, int]:
    """The least and the largest row shift: what int8 holds, and keeps every segment among the finite patterns."""
    octaves_down = float_format.exponent_bias - OCTAVES_BELOW
    octaves_up = (float_format.infinity >> float_format.mantissa_bits) - SPAN - 1
    octaves_up -= float_format.exponent_bias + OCTAVES_ABOVE
    return max(-127, -SHIFTS_PER_OCTAVE * octaves_down), min(127, SHIFTS_PER_OCTAVE * octaves_up)


def row_shifts_of(patterns: U16, float_format: FloatFormat) -> I8:
    """The shift of each row, (rows,) int8: its root mean square in eighths of an octave, rounded; 0 for a row of zeros.

    Non-finite weights count as zero.

    Source:
        formats/bsfp.md, "Row shifts": the mean square is folded per group of 128, groups are added in order.
    """
    return shifts_of_sums(sums_of_squares(patterns, float_format), patterns.shape[1], float_format)


def sums_of_squares(patterns: U16, float_format: FloatFormat) -> F64:
    """(rows,) float64: the squares of each row's values, folded by groups of 128, which are added in order."""
    squares = group_values(float_format.decode(patterns)) ** 2
    total = np.zeros(len(patterns))
    for group in range(squares.shape[1]):
        total += fold(squares[:, group])
    return total


@cache
def shift_boundaries(float_format: FloatFormat) -> F64:
    """The mean squares at which the second, third, ... of the shifts begin, ascending."""
    least, largest = shift_limits(float_format)
    return np.asarray(2.0 ** ((np.arange(least + 1, largest + 1) - 0.5) / (SHIFTS_PER_OCTAVE / 2)), np.float64)


def shifts_of_sums(sums_of_squares: F64, num_columns: int, float_format: FloatFormat) -> I8:
    """The shifts of rows, from the sums of their squares."""
    mean_square = sums_of_squares / max(num_columns, 1)
    least, _ = shift_limits(float_format)
    shifts = np.searchsorted(shift_boundaries(float_format), mean_square, side="right") + least
    return np.where(mean_square > 0, shifts, 0).astype(np.int8)


@dataclass
class PatternHistogram:
    """Counts of one tensor's magnitude patterns; `add` row slices, then hand it to the fit."""

    float_format: FloatFormat
    num_rows: int = 0
    num_columns: int = 0
    _slots: dict[int, int] = field(init=False, default_factory=dict)  # row shift to its row of `_by_shift`
    _shifts: list[I8] = field(init=False, default_factory=list)  # of the rows so far
    _by_shift: I64 = field(init=False)  # (at least the number of slots, 32768) by pattern

    def __post_init__(self) -> None:
        self._by_shift = np.zeros((4, NUM_PATTERNS), np.int64)

    def add(self, patterns: U16) -> None:
        """Count a slice of rows, (rows, columns) uint16."""
        slots, counts = self.make_room(row_shifts_of(patterns, self.float_format), patterns.shape[1])
        bins = (patterns & MAGNITUDE_MASK).astype(np.int64)
        bins += slots[:, None] * NUM_PATTERNS
        counts += np.bincount(bins.ravel(), minlength=counts.size).reshape(counts.shape)

    def make_room(self, shifts: I8, num_columns: int) -> tuple[I64, I64]:
        """Note rows that are about to be counted, by their shifts.

        Returns:
            slots: (rows,) int64, the row of `counts` in which each row's patterns count.
            counts: (slots, 32768) int64 by magnitude pattern, to be added to in place.
        """
        self.num_rows += len(shifts)
        self.num_columns = num_columns
        self._shifts.append(shifts)
        different, indices = np.unique(shifts, return_inverse=True)
        slots = np.array([self._slots.setdefault(int(s), len(self._slots)) for s in different], np.int64)
        if len(self._slots) > len(self._by_shift):
            larger = np.zeros((2 * len(self._slots), NUM_PATTERNS), np.int64)
            larger[: len(self._by_shift)] = self._by_shift
            self._by_shift = larger
        return slots[indices], self._by_shift[: len(self._slots)]

    def include(self, other: "PatternHistogram") -> None:
        """Count what another histogram of as many columns has counted, as further rows."""
        _, counts = self.make_room(other.row_shifts, other.num_columns)
        for shift, slot in other._slots.items():
            counts[self._slots[shift]] += other._by_shift[slot]

    @property
    def row_shifts(self) -> I8:
        """(num_rows,) of the rows that were counted, in order."""
        return np.concatenate([np.zeros(0, np.int8), *self._shifts])

    @property
    def counts(self) -> I64:
        """(32768,) by pattern."""
        counts: I64 = self._by_shift.sum(axis=0)
        return counts

    @property
    def shifted_counts(self) -> I64:
        """(8, num_bins) by phase and pattern above `shifted_first`."""
        counts = np.zeros((SHIFTS_PER_OCTAVE, self.num_bins), np.int64)
        for shift, slot in self._slots.items():
            counts[shift % SHIFTS_PER_OCTAVE] += self._moved(self._by_shift[slot], shift)
        return counts

    @property
    def shifted_energy(self) -> F64:
        """The same, each finite weight counting 4^(shift / 8); shifts are added in ascending order."""
        energy = np.zeros((SHIFTS_PER_OCTAVE, self.num_bins), np.float64)
        for shift, slot in sorted(self._slots.items()):
            finite = self._by_shift[slot].copy()
            finite[self.float_format.infinity :] = 0
            energy[shift % SHIFTS_PER_OCTAVE] += self._moved(finite, shift) * 4.0 ** (shift / SHIFTS_PER_OCTAVE)
        return energy

    @property
    def shifted_first(self) -> int:
        """The pattern of the lowest shifted bin, which also holds all below; one octave under the lowest start."""
        octaves = self.float_format.exponent_bias - OCTAVES_BELOW - 1
        return octaves * self.float_format.patterns_per_octave

    @property
    def num_bins(self) -> int:
        """Shifted bins; the last one also holds all above, which no segment of any phase reaches."""
        return (OCTAVES_BELOW + OCTAVES_ABOVE + SPAN + 3) * self.float_format.patterns_per_octave

    @property
    def num_weights(self) -> int:
        return self.num_rows * self.num_columns

    @property
    def num_nonfinite(self) -> int:
        return int(self._by_shift[:, self.float_format.infinity :].sum())

    def _moved(self, counts: I64, shift: int) -> I64:
        """(32768,) counts of rows with a shift, by shifted bin; the first and last one take what lies beyond."""
        begin = shift // SHIFTS_PER_OCTAVE * self.float_format.patterns_per_octave + self.shifted_first + 1
        end = begin + self.num_bins - 2
        low = max(begin, 0)
        inside = counts[low:end]
        moved = np.zeros(self.num_bins, np.int64)
        moved[1 + low - begin : 1 + low - begin + len(inside)] = inside
        moved[0], moved[-1] = counts[:low].sum(), counts[end:].sum()
        return moved
