"""Patterns to nibbles, residuals and escapes, and back: the lossless half of BSFP."""

from dataclasses import dataclass

import numpy as np

from mxconv.arrays import I8, I32, U8, U16, Bool
from mxconv.codecs.bsfp.table import NUM_CODES, SegmentTable
from mxconv.codecs.float16 import MAGNITUDE_MASK, SIGN_MASK


@dataclass(frozen=True)
class Planes:
    """What BSFP stores of a matrix, one entry a weight, all (rows, columns)."""

    nibbles: U8  # sign << 3 | code
    residuals: U16  # offset in the segment; of an escape, what makes the low byte come out right
    escaped: Bool  # no segment covers the pattern


def encode_planes(patterns: U16, table: SegmentTable, row_shifts: I8 | None = None) -> Planes:
    """Split (rows, columns) 16-bit patterns; every pattern survives, NaNs and infinities included.

    A pattern belongs to the code with the largest start that does not exceed it, or to the lowest segment if it lies
    below all. Where that segment does not reach it, it escapes: it keeps the code, and its residual is the offset
    modulo 256, so that `start + residual` has the right low byte and only the high one must be patched.

    Source:
        formats/bsfp.md, "Encoding".
    """
    magnitudes = (patterns & MAGNITUDE_MASK).astype(np.int32)
    starts = table.row_starts(len(patterns), row_shifts)
    rank = np.zeros(patterns.shape, np.uint8)
    for code in table.order[1:]:
        rank += magnitudes >= starts[:, code, None]
    return planes_of(patterns, table.order.astype(np.uint8)[rank], table, row_shifts)


def planes_of(patterns: U16, codes: U8, table: SegmentTable, row_shifts: I8 | None = None) -> Planes:
    """Split patterns whose codes, bits 2..0 of (rows, columns) uint8, are chosen: residual and escape follow."""
    codes = codes & np.uint8(NUM_CODES - 1)
    starts = table.row_starts(len(patterns), row_shifts)
    magnitudes = (patterns & MAGNITUDE_MASK).astype(np.int32)
    offsets = magnitudes - np.take_along_axis(starts, codes.astype(np.intp), axis=1)
    escaped = (offsets < 0) | (offsets >= table.num_patterns)
    residuals = np.where(escaped, offsets & 0xFF, offsets).astype(np.uint16)
    nibbles = codes | (patterns >> 12 & 0x8).astype(np.uint8)
    return Planes(nibbles, residuals, escaped)


def decode_planes(nibbles: U8, residuals: U16, table: SegmentTable, row_shifts: I8 | None = None) -> U16:
    """Patterns, (rows, columns) uint16, of all weights that did not escape: `start[code] + residual`, and the sign.

    At escapes only the low byte is right; see `restore_escapes`.
    """
    starts: I32 = table.row_starts(len(nibbles), row_shifts)
    codes = (nibbles & (NUM_CODES - 1)).astype(np.intp)
    magnitudes = np.take_along_axis(starts, codes, axis=1) + residuals
    signs = (nibbles.astype(np.uint16) << 12) & SIGN_MASK
    return np.asarray(magnitudes.astype(np.uint16) | signs, np.uint16)


def restore_escapes(patterns: U16, escaped: Bool, high_bytes: U8) -> None:
    """Patch the escapes, in place: the high byte comes from the list, the low one is right already.

    `high_bytes` are bits 15..8 of the escapes in the order of `escaped`.
    """
    patterns[escaped] = (high_bytes.astype(np.uint16) << 8) | (patterns[escaped] & 0xFF)
