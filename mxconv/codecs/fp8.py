"""E4M3 bytes with a scale a block, to the BF16 weights that they stand for.

Normative text: formats/fp8.md.
"""

import numpy as np

from mxconv.arrays import F32, U8, U16
from mxconv.codecs.float16 import BF16


def _e4m3_values() -> F32:
    """(256,) by byte: bit 7 the sign, bits 6..3 the exponent, bits 2..0 the mantissa; 7f and ff are NaN."""
    codes = np.arange(128)
    exponents, mantissas = codes >> 3, codes & 7
    normal = np.ldexp(1 + mantissas / 8, exponents - 7)
    magnitudes = np.where(exponents == 0, np.ldexp(mantissas / 8, -6), normal).astype(np.float32)
    magnitudes[0x7F] = np.nan
    return np.concatenate([magnitudes, -magnitudes])


E4M3_VALUES = _e4m3_values()


def decode_fp8(codes: U8, scales: F32, block: tuple[int, int], first_row: int = 0) -> U16:
    """Rows of a matrix as BF16.

    Args:
        codes: (rows, columns) uint8, some rows of the matrix.
        scales: (blocks of rows, blocks of columns) float32, of the whole matrix.
        block: rows and columns of a block.
        first_row: of the matrix, that `codes` begins with.

    Returns:
        (rows, columns) uint16 BF16 patterns: binary32 products, rounded to nearest, ties to even.
    """
    rows, columns = codes.shape
    by_row = scales[(first_row + np.arange(rows)) // block[0]]
    by_column = np.repeat(by_row, block[1], axis=1)[:, :columns]
    with np.errstate(over="ignore", invalid="ignore"):  # of foreign scales; a writer refuses what is not finite
        return BF16.encode(E4M3_VALUES[codes] * by_column)
