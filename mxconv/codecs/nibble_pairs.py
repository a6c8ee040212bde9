"""Two 4-bit codes a byte, the even column's in bits 3..0: how other libraries pack rows."""

import numpy as np

from mxconv.arrays import U8


def pack_pairs(codes: U8) -> U8:
    """(rows, columns) codes 0..15 -> (rows, columns / 2) bytes."""
    return codes[:, 0::2] | np.left_shift(codes[:, 1::2], 4, dtype=np.uint8)


def unpack_pairs(pairs: U8) -> U8:
    """(rows, columns / 2) bytes -> (rows, columns) codes 0..15."""
    codes = np.empty((len(pairs), 2 * pairs.shape[1]), np.uint8)
    codes[:, 0::2] = pairs & 0xF
    codes[:, 1::2] = pairs >> 4
    return codes
