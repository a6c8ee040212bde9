"""Histograms of exponent fields, and the window of 16 exponents that holds most weights.

SPEQ (arXiv 2510.18525) found that trained weights use about 16 consecutive exponents, which leaves exponent bits free
for its draft. Whether a tensor keeps to such a window, and where it lies, is the first thing to look at.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from mxconv.arrays import I64
from mxconv.codecs.float16 import FloatFormat

WINDOW = 16
MARGIN = 6  # fields beyond the window that are shown one by one; those further away are shown together
LINEAR_RATIO = 40  # up to this largest-to-smallest ratio all bars are visible on a linear scale


@dataclass(frozen=True)
class ExponentCounts:
    """The exponent fields of one or more tensors of the same 16-bit float."""

    float_format: FloatFormat
    fields: I64  # (2^exponent_bits,) weights by exponent field; zeros are in field 0, infinities and NaNs in the last
    num_zero: int
    max_abs: float | None  # largest finite magnitude; None where no weight is finite

    @classmethod
    def from_patterns(cls, float_format: FloatFormat, counts: I64) -> "ExponentCounts":
        """Sum up a histogram of magnitude patterns.

        Args:
            counts: (32768,) int64 by pattern.
        """
        finite = np.flatnonzero(counts[: float_format.infinity])
        max_abs = float(float_format.decode(finite[-1:].astype(np.uint16))[0]) if finite.size else None
        fields = counts.reshape(-1, float_format.patterns_per_octave).sum(axis=1)
        return cls(float_format, fields, int(counts[0]), max_abs)

    def __add__(self, other: "ExponentCounts") -> "ExponentCounts":
        """Add the counts of tensors of the same format, whose exponent fields mean the same."""
        maxima = [value for value in (self.max_abs, other.max_abs) if value is not None]
        return ExponentCounts(
            self.float_format, self.fields + other.fields, self.num_zero + other.num_zero, max(maxima, default=None)
        )

    @property
    def num_weights(self) -> int:
        return int(self.fields.sum())

    @property
    def num_nonfinite(self) -> int:
        return int(self.fields[-1])

    @property
    def nonzero(self) -> I64:
        """(2^exponent_bits - 1,) weights by exponent field that are neither zero nor non-finite."""
        fields = self.fields[:-1].copy()
        fields[0] -= self.num_zero
        return fields

    @property
    def num_nonzero(self) -> int:
        """Weights that are neither zero nor non-finite."""
        return int(self.nonzero.sum())

    @property
    def window(self) -> tuple[int, int] | None:
        """First and last of the 16 consecutive fields with most non-zero finite weights; on ties the highest ones.

        None where there is no such weight.
        """
        sums = np.convolve(self.nonzero, np.ones(WINDOW, np.int64), "valid")
        if sums.max() == 0:
            return None
        low = len(sums) - 1 - int(sums[::-1].argmax())
        return low, low + WINDOW - 1

    @property
    def num_outside_window(self) -> int:
        """Non-zero finite weights outside the window."""
        if self.window is None:
            return 0
        low, high = self.window
        return self.num_nonzero - int(self.nonzero[low : high + 1].sum())

    def value_exponent(self, field: int) -> int:
        """k where weights of this field have magnitudes in [2^k, 2^(k+1)); of field 0, below 2^(k+1)."""
        return field - self.float_format.exponent_bias

    @property
    def scale(self) -> Literal["linear", "log"]:
        """The scale on which every count can be seen."""
        present = self.nonzero[self.nonzero > 0]
        return "linear" if present.max() <= LINEAR_RATIO * present.min() else "log"

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """First and last field of each bar of a histogram: a bar a field, and one for each far tail."""
        if self.window is None:
            return []
        low, high = self.window
        occupied = np.flatnonzero(self.nonzero)
        lowest, highest = min(low, int(occupied[0])), max(high, int(occupied[-1]))
        near = [(field, field) for field in range(max(lowest, low - MARGIN), min(highest, high + MARGIN) + 1)]
        below = [(lowest, low - MARGIN - 1)] if lowest < low - MARGIN else []
        above = [(high + MARGIN + 1, highest)] if highest > high + MARGIN else []
        return [*below, *near, *above]
