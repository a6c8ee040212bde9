"""The segment table: how the 15-bit magnitude patterns of one tensor are cut into eight segments."""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from mxconv.arrays import F32, I8, I32
from mxconv.codecs.float16 import MAGNITUDE_MASK, FloatFormat
from mxconv.errors import CodecError

NUM_CODES = 8
RESIDUAL_BITS = {"BF16": (8, 9), "F16": (10, 11, 12)}
SHIFTS_PER_OCTAVE = 8  # a row shift counts eighths of an octave
MAX_LEVEL = 65536  # a level is relative to its group scale; finite products in float32 need no more


@dataclass(frozen=True)
class SegmentTable:
    """Eight segments of `2**residual_bits` patterns each; a code selects one.

    A tensor whose rows all use the same segments has one row of starts. With row shifts there are eight, one for each
    eighth of an octave: row r with shift s uses `starts[s % 8] + (s // 8) * patterns_per_octave`.
    """

    float_format: FloatFormat
    residual_bits: int
    starts: tuple[tuple[int, ...], ...]  # (1 or 8, 8) magnitude patterns, by code
    levels: tuple[float, ...]  # (8,) draft magnitudes by code, times the group scale
    kind: str = "fitted"  # or "paper"

    def __post_init__(self) -> None:
        allowed = RESIDUAL_BITS[self.float_format.name]
        if self.residual_bits not in allowed:
            raise CodecError(
                f"segment table: residual width {self.residual_bits}; {self.float_format.name} takes one of {allowed}."
            )
        if len(self.starts) not in (1, SHIFTS_PER_OCTAVE) or any(len(row) != NUM_CODES for row in self.starts):
            raise CodecError("segment table: starts are no 1 x 8 or 8 x 8 table; one start a code is required.")
        if len(self.levels) != NUM_CODES or not all(0 <= level <= MAX_LEVEL for level in self.levels):
            raise CodecError(f"segment table: levels {self.levels}; eight numbers from 0 to {MAX_LEVEL} are required.")
        for row in self.starts:
            self._check_range(min(row), max(row))
            if any(row[low] > row[high] for low, high in pairwise(self.order)):
                raise CodecError(
                    f"segment table: starts {row} order the codes unlike {self.starts[0]}; one order is required."
                )

    @property
    def has_row_shifts(self) -> bool:
        return len(self.starts) == SHIFTS_PER_OCTAVE

    @property
    def num_patterns(self) -> int:
        """How many patterns a segment covers."""
        return 1 << self.residual_bits

    @property
    def has_int8_levels(self) -> bool:
        """Whether int8 kernels can multiply with the levels; the paper's span 2^12 and cannot."""
        return all(level == int(level) and 0 <= level <= 127 for level in self.levels)

    @cached_property
    def signed_levels(self) -> F32:
        """(16,) float32 by nibble: bit 3 is the sign."""
        magnitudes = np.array(self.levels, np.float32)
        return np.concatenate([magnitudes, -magnitudes])

    @cached_property
    def order(self) -> I32:
        """(8,) codes by ascending start (the paper's codes do not ascend with the value)."""
        return np.argsort(np.array(self.starts[0]), kind="stable").astype(np.int32)

    def row_starts(self, num_rows: int, row_shifts: I8 | None) -> I32:
        """The starts that each row uses, (num_rows, 8) int32 by code; row shifts are int8 eighths of an octave.

        Raises:
            CodecError: shifts are missing or superfluous, or one moves a segment out of the finite patterns.
        """
        if self.has_row_shifts != (row_shifts is not None):
            raise CodecError(
                f"segment table with {len(self.starts)} rows of starts, row shifts "
                f"{'missing' if row_shifts is None else 'present'}; eight rows and row shifts go together."
            )
        table = np.array(self.starts, np.int32)
        if row_shifts is None:
            return np.broadcast_to(table, (num_rows, NUM_CODES))
        shifts = row_shifts.astype(np.int32)
        octaves = (shifts // SHIFTS_PER_OCTAVE) * self.float_format.patterns_per_octave
        starts = table[shifts % SHIFTS_PER_OCTAVE] + octaves[:, None]
        if starts.size:
            self._check_range(int(starts.min()), int(starts.max()))
        return starts.astype(np.int32)

    def _check_range(self, least: int, largest: int) -> None:
        """Every code with every residual must be a finite number, so that even padding decodes to one."""
        limit = self.float_format.infinity - self.num_patterns
        if least < 0 or largest > limit:
            found = least if least < 0 else largest
            raise CodecError(
                f"segment table: start {found}; 0 to {limit} is required, so that each residual stays finite."
            )
        assert limit <= MAGNITUDE_MASK
