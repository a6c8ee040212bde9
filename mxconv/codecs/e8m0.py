"""E8M0, the shared scale of MX formats: a power of two in one byte, biased by 127.

Byte b stands for 2^(b - 127), b = 0..254. 0xFF is NaN; we never write it.
"""

import numpy as np

from mxconv.arrays import F32, I32, U8

BIAS = 127
NAN = 0xFF


def encode_e8m0(exponents: I32) -> U8:
    """Bytes of power-of-two exponents, clamped to -127..127.

    Args:
        exponents: (...,) int32.

    Returns:
        (...,) uint8, 0..254.
    """
    return (np.clip(exponents, -BIAS, BIAS) + BIAS).astype(np.uint8)


def decode_e8m0(scales: U8) -> F32:
    """Values 2^(byte - 127): exact in float32, 2^-127 being subnormal; 0xFF is NaN.

    Args:
        scales: (...,) uint8.

    Returns:
        (...,) float32.

    Source:
        OCP MX v1.0 (E8M0).
    """
    is_nan = scales == NAN
    values = np.ldexp(np.float32(1), np.where(is_nan, 0, scales.astype(np.int32) - BIAS))
    values[is_nan] = np.nan
    return values


def floor_log2(values: F32) -> I32:
    """floor(log2(value)) from the exponent field; subnormals included.

    Args:
        values: (...,) float32, finite and > 0 (0 gives -1 as frexp has it; callers mask it).

    Returns:
        (...,) int32.
    """
    return np.frexp(values)[1].astype(np.int32) - 1
