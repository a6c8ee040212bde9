"""What the fit sees of a tensor: how often each magnitude pattern occurs, with and without row shifts.

One pass over the weights fills two histograms. In the first a pattern counts where it is. In the second each row is
first moved to a root mean square near 1 by whole octaves, and counts in one of eight phases, by the eighth of an octave
that remains; its weights carry the row's energy, since the draft's error is measured over the tensor.
"""

from dataclasses import dataclass, field

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
    """The shift of each row: its root mean square in eighths of an octave, rounded; 0 for a row of zeros.

    Args:
        patterns: (rows, columns) uint16. Non-finite weights count as zero.

    Returns:
        (rows,) int8.

    Source:
        formats/bsfp.md, "Row shifts": the mean square is folded per group of 128, groups are added in order.
    """
    columns = patterns.shape[1]
    squares = group_values(float_format.decode(patterns)) ** 2
    total = np.zeros(len(patterns))
    for group in range(squares.shape[1]):
        total += fold(squares[:, group])
    mean_square = total / max(columns, 1)
    least, largest = shift_limits(float_format)
    boundaries = 2.0 ** ((np.arange(least + 1, largest + 1) - 0.5) / (SHIFTS_PER_OCTAVE / 2))
    shifts = np.searchsorted(boundaries, mean_square, side="right") + least
    return np.where(mean_square > 0, shifts, 0).astype(np.int8)


@dataclass
class PatternHistogram:
    """Counts of one tensor's magnitude patterns; `add` row slices, then hand it to the fit."""

    float_format: FloatFormat
    counts: I64 = field(init=False)  # (32768,) by pattern
    shifted_counts: I64 = field(init=False)  # (8, num_bins) by phase and pattern above `shifted_first`
    shifted_energy: F64 = field(init=False)  # the same, each finite weight counting 4^(shift / 8)
    num_rows: int = 0
    num_columns: int = 0

    def __post_init__(self) -> None:
        self.counts = np.zeros(NUM_PATTERNS, np.int64)
        self.shifted_counts = np.zeros((SHIFTS_PER_OCTAVE, self.num_bins), np.int64)
        self.shifted_energy = np.zeros((SHIFTS_PER_OCTAVE, self.num_bins), np.float64)

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
        return int(self.counts.sum())

    @property
    def num_nonfinite(self) -> int:
        return int(self.counts[self.float_format.infinity :].sum())

    def add(self, patterns: U16) -> None:
        """Count a slice of rows.

        Args:
            patterns: (rows, columns) uint16.
        """
        magnitudes = (patterns & MAGNITUDE_MASK).astype(np.int64)
        self.counts += np.bincount(magnitudes.ravel(), minlength=NUM_PATTERNS)
        self.num_rows += len(patterns)
        self.num_columns = patterns.shape[1]

        shifts = row_shifts_of(patterns, self.float_format).astype(np.int64)
        octaves = (shifts // SHIFTS_PER_OCTAVE) * self.float_format.patterns_per_octave
        bins = magnitudes - (octaves + self.shifted_first)[:, None]
        np.clip(bins, 0, self.num_bins - 1, out=bins)
        bins += (shifts % SHIFTS_PER_OCTAVE * self.num_bins)[:, None]
        shape = self.shifted_counts.shape
        counts = np.bincount(bins.ravel(), minlength=self.shifted_counts.size)
        self.shifted_counts += counts.reshape(shape)
        row_energy = 4.0 ** (shifts / SHIFTS_PER_OCTAVE)
        energy = np.where(magnitudes < self.float_format.infinity, row_energy[:, None], 0.0)
        energies = np.bincount(bins.ravel(), weights=energy.ravel(), minlength=self.shifted_counts.size)
        self.shifted_energy += energies.reshape(shape)
