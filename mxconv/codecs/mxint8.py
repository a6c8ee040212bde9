"""MXINT8: blocks of 32 int8 elements along in_features that share one E8M0 scale.

A block's scale is X = 2^floor(log2(amax)), an element is value / X in steps of 1/64, -127 to 127: seven bits and a
sign, so that every value is a BF16 number exactly. Normative text: formats/mxint8.md.
"""

import numpy as np

from mxconv.arrays import F32, I8, U8, U16
from mxconv.codecs.e8m0 import BIAS, decode_e8m0, encode_e8m0, floor_log2
from mxconv.codecs.float16 import BF16
from mxconv.codecs.mxfp4 import BLOCK, NonFiniteError
from mxconv.errors import CodecError

FRACTION_BITS = 6  # an element is a multiple of 1/64
MAX_ELEMENT = 127
MAX_FLOAT32_EXPONENT = 127


def quantize_mxint8(values: F32) -> tuple[I8, U8]:
    """Quantize rows of finite float32 to MXINT8; a last partial block is padded with zeros.

    Returns:
        elements: (rows, num_blocks * 32) int8 in -127..127: nearest, ties to even, saturating.
        scales: (rows, num_blocks) uint8 E8M0; 0 for a block of zeros.

    Raises:
        NonFiniteError: a value is not finite; it names the first one's index.

    Source:
        OCP MX v1.0 (INT8), with -128 left out; ties are fixed by formats/mxint8.md.
    """
    rows, columns = values.shape
    blocks = values
    if columns % BLOCK:
        blocks = np.zeros((rows, -(-columns // BLOCK) * BLOCK), np.float32)
        blocks[:, :columns] = values
    blocks = blocks.reshape(rows, -1, BLOCK)
    amax = np.maximum(blocks.max(axis=-1), -blocks.min(axis=-1))
    if not np.isfinite(amax).all():
        row, column = np.argwhere(~np.isfinite(values))[0]
        raise NonFiniteError(int(row), int(column), float(values[row, column]))
    zero = amax == 0
    scales = encode_e8m0(np.where(zero, np.int32(-BIAS), floor_log2(amax)))
    exponents = FRACTION_BITS + BIAS - scales.astype(np.int32)
    # two factors where one would leave float32; both are powers of two, so that only what rounds to 0 is not exact
    first = np.minimum(exponents, MAX_FLOAT32_EXPONENT)
    scaled = blocks * np.ldexp(np.float32(1), first)[:, :, None]
    if (exponents > first).any():
        scaled *= np.ldexp(np.float32(1), exponents - first)[:, :, None]
    np.rint(scaled, out=scaled)
    np.clip(scaled, -MAX_ELEMENT, MAX_ELEMENT, out=scaled)
    return scaled.astype(np.int8).reshape(rows, -1), scales


def dequantize_mxint8(elements: I8, scales: U8) -> F32:
    """Values of (rows, num_blocks * 32) elements and (rows, num_blocks) scales: exact in float32, and in BF16.

    Raises:
        CodecError: the shapes do not belong together, or the arrays hold what the format does not have.
    """
    rows, columns = elements.shape
    if scales.shape != (rows, columns // BLOCK) or columns % BLOCK:
        raise CodecError(f"elements {elements.shape} with scales {scales.shape}; one scale per 32 columns is required.")
    check_mxint8(elements, scales)
    steps = elements.reshape(rows, -1, BLOCK).astype(np.float32) * np.float32(2.0**-FRACTION_BITS)
    return (steps * decode_e8m0(scales)[:, :, None]).reshape(rows, columns)


def mxint8_patterns(elements: I8, scales: U8) -> U16:
    """The same values as BF16 patterns, (rows, num_blocks * 32): none is rounded."""
    return BF16.encode(dequantize_mxint8(elements, scales))


def check_mxint8(elements: I8, scales: U8) -> None:
    """Refuse bytes that no writer may write, in any order.

    Raises:
        CodecError: an element of -128, or a scale that is NaN.
    """
    if elements.size and elements.min() < -MAX_ELEMENT:
        raise CodecError(f"MXINT8 element {elements.min()}; -127 to 127 is required.")
    if scales.size and scales.max() > 2 * BIAS:
        raise CodecError(f"MXINT8 scale {scales.max()}, which is NaN; 0 to 254 is required.")
