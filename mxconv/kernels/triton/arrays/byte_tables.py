"""Tables of eight entries as the bytes from which kernels permute them."""

import numpy as np

from mxconv.arrays import I8, I32, U16
from mxconv.kernels.triton.launch import ROWS


def pattern_table(patterns: U16) -> I32:
    """Of 16-bit patterns.

    Args:
        patterns: (..., 8) by code, their upper bits zero: signs are the nibbles'.

    Returns:
        (..., 4) int32: the low bytes of codes 0 to 3, of 4 to 7, their high bytes.
    """
    planes = np.stack([patterns & 0xFF, patterns >> 8], axis=-2).astype(np.uint8)
    words: I32 = np.ascontiguousarray(planes).view("<i4").reshape(*patterns.shape[:-1], 4)
    return words


def row_tables(patterns: U16) -> I32:
    """One table for every row of a program: from addresses that differ, it stays in registers of its own.

    Args:
        patterns: (8,) as for `pattern_table`.

    Returns:
        (64, 4) int32.
    """
    return np.tile(pattern_table(patterns), (int(ROWS.value), 1))


def int8_table(levels: I8) -> I32:
    """Of signed levels.

    Args:
        levels: (16,) by nibble, whose bit 3 is the sign.

    Returns:
        (4,) int32: those of nibbles 0 to 3, 4 to 7, 8 to 11, 12 to 15.
    """
    words: I32 = np.ascontiguousarray(levels).view("<i4")
    return words
