"""MX2: blocks of 32 two-bit elements along in_features that share one E8M0 scale, 2.25 bits a weight.

An element is ±1 or ±3; there is no zero. A block's scale is the power of two, of three near its largest magnitude, that
gives the least squared error. A direct cast is too coarse to draft with: `mxconv/calibrate.py` rounds by what matrices
multiply. Normative text: formats/mx2.md.
"""

import numpy as np

from mxconv.arrays import F32, I8, U8
from mxconv.codecs.e8m0 import BIAS, decode_e8m0, floor_log2
from mxconv.codecs.fold import fold
from mxconv.codecs.mxfp4 import BLOCK, NonFiniteError
from mxconv.codecs.vnni8 import QUAD, TILE_ROWS, from_tiles, to_tiles
from mxconv.errors import CodecError

LEVELS: I8 = np.array([1, 3, -1, -3], np.int8)  # by code: bit 1 is the sign, bit 0 chooses 3
VALUES: F32 = LEVELS.astype(np.float32)
PAIR_COLUMNS = 16  # of two tiles, whose codes lie in the same 64 bytes
SHIFTS: U8 = np.array([[0], [2], [4], [6]], np.uint8)  # of four columns each
MAX_EXPONENT = 126  # 3 * 2^126 is finite in float32
CANDIDATES = (-1, -2, -3)  # exponents of a scale, from floor(log2(amax)) on


def encode_mx2(values: F32) -> U8:
    """Round to codes: nearest, the tie at ±2 toward zero, saturating at ±3, the sign of zero kept.

    Args:
        values: (...,) float32, already divided by the block scale.

    Returns:
        (...,) uint8, 0 to 3.
    """
    codes: U8 = np.signbit(values).astype(np.uint8) << np.uint8(1) | (np.abs(values) > 2).astype(np.uint8)
    return codes


def quantize_mx2(values: F32) -> tuple[U8, U8]:
    """Quantize rows of finite float32 by the direct cast; a last partial block is padded with zeros.

    Returns:
        codes: (rows, num_blocks * 32) uint8, 0 to 3.
        scales: (rows, num_blocks) uint8 E8M0; 0 for a block of zeros.

    Raises:
        NonFiniteError: a value is not finite; it names the first one's index.
    """
    if not np.isfinite(values).all():
        row, column = np.argwhere(~np.isfinite(values))[0]
        raise NonFiniteError(int(row), int(column), float(values[row, column]))
    rows, columns = values.shape
    blocks = np.zeros((rows, -(-columns // BLOCK) * BLOCK), np.float32)
    blocks[:, :columns] = values
    blocks = blocks.reshape(rows, -1, BLOCK)
    amax = np.abs(blocks).max(axis=-1)
    first = floor_log2(amax)
    codes, scales = np.zeros(blocks.shape, np.uint8), np.zeros(amax.shape, np.uint8)
    least = np.full(amax.shape, np.inf)
    for step in CANDIDATES:
        exponents = np.clip(first + step, -BIAS, MAX_EXPONENT)
        scaled = np.ldexp(blocks.astype(np.float64), -exponents[:, :, None])
        found = encode_mx2(scaled.astype(np.float32))
        # in units of the first candidate's scale, so that no square leaves float64
        errors = np.ldexp(fold((scaled - VALUES[found]) ** 2), 2 * (exponents - first))
        is_better = errors < least
        codes[is_better], scales[is_better] = found[is_better], (exponents + BIAS)[is_better]
        least = np.minimum(least, errors)
    codes[amax == 0], scales[amax == 0] = 0, 0  # whatever the signs of its zeros
    return codes.reshape(rows, -1), scales


def dequantize_mx2(codes: U8, scales: U8) -> F32:
    """Values of (rows, num_blocks * 32) codes and (rows, num_blocks) scales: exact in float32.

    Raises:
        CodecError: the shapes do not belong together, or a scale is none of the format.
    """
    rows, columns = codes.shape
    if scales.shape != (rows, columns // BLOCK) or columns % BLOCK:
        raise CodecError(f"codes {codes.shape} with scales {scales.shape}; one scale per 32 columns is required.")
    check_mx2(scales)
    values = VALUES[codes].reshape(rows, -1, BLOCK) * decode_e8m0(scales)[:, :, None]
    return values.reshape(rows, columns)


def check_mx2(scales: U8) -> None:
    """Refuse scales that no writer may write, in any order; every pair of bits is a valid code.

    Raises:
        CodecError: a scale is above 2^126.
    """
    if scales.size and scales.max() > MAX_EXPONENT + BIAS:
        raise CodecError(f"MX2 scale {scales.max()}; 0 to {MAX_EXPONENT + BIAS} is required.")


def pack_mx2(codes: U8) -> U8:
    """(rows, columns) codes 0..3 -> (rows/16, columns/16, 64) bytes.

    Byte 4r + j holds columns j, j + 4, j + 8 and j + 12 of row r, the first in its lowest bits.

    Raises:
        CodecError: the shape is not padded, or a code is above 3.
    """
    if codes.size and codes.max() > 3:
        raise CodecError(f"code {codes.max()}: above 3; 2-bit codes are required.")
    tiles = to_tiles(codes, PAIR_COLUMNS)
    quads = tiles.reshape(*tiles.shape[:3], -1, QUAD)
    packed: U8 = np.bitwise_or.reduce(quads << SHIFTS, axis=-2)
    return packed.reshape(*tiles.shape[:2], TILE_ROWS * QUAD)


def unpack_mx2(packed: U8) -> U8:
    """(rows/16, columns/16, 64) bytes -> (rows, columns) codes."""
    tiles = packed.reshape(*packed.shape[:2], TILE_ROWS, 1, QUAD)
    codes: U8 = tiles >> SHIFTS & np.uint8(3)
    return from_tiles(codes.reshape(*packed.shape[:2], TILE_ROWS, PAIR_COLUMNS))
