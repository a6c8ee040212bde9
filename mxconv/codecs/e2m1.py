"""E2M1, the 4-bit element of MXFP4: sign, two exponent bits, one mantissa bit.

Eight magnitudes, 0 0.5 1 1.5 2 3 4 6, at codes 0..7; bit 3 is the sign. Each rounding boundary is one comparison,
so a tie is decided by `>` (stays below) or `>=` (goes up).
"""

import numpy as np

from mxconv.arrays import F32, U8
from mxconv.errors import CodecError

MAGNITUDES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
VALUES = np.concatenate([MAGNITUDES, -MAGNITUDES])  # by code
DOUBLED = (2 * VALUES).astype(np.int8)  # the integers that int8 kernels multiply with
MAX = 6.0
SIGN = 0x8


def encode_e2m1(values: F32) -> U8:
    """Round values over their block scale to E2M1 codes: nearest, ties to even, saturating at ±6, with signs of zeros.

    Bit 3 of a code is the sign, bits 2..0 are the magnitude, bits 7..4 zero.

    Raises:
        CodecError: a value is NaN.

    Source:
        OCP MX v1.0 (E2M1); the tie rule is fixed by formats/mxfp4.md.
    """
    a = _magnitudes(values)
    codes = (a > 0.25).view(np.uint8).copy()
    for above in (a >= 0.75, a > 1.25, a >= 1.75, a > 2.5, a >= 3.5, a > 5):
        codes += above
    codes |= np.signbit(values).view(np.uint8) << 3
    return codes


def encode_e2m1_toward_zero(values: F32) -> U8:
    """Round to E2M1 codes as ggml does: nearest, ties toward zero, and a zero has no sign.

    Args, returns and errors are those of `encode_e2m1`.
    """
    a = _magnitudes(values)
    codes = (a > 0.25).view(np.uint8).copy()
    for boundary in (0.75, 1.25, 1.75, 2.5, 3.5, 5):
        codes += a > boundary
    codes |= (np.signbit(values) & (codes > 0)).view(np.uint8) << 3
    return codes


def decode_e2m1(codes: U8) -> F32:
    """Values of E2M1 codes.

    Raises:
        CodecError: a code is above 15.
    """
    if codes.size and codes.max() > 15:
        raise CodecError(f"E2M1 code {codes.max()}: above 15; one code a byte is required. Unpack nibbles first.")
    return VALUES[codes]


def _magnitudes(values: F32) -> F32:
    a = np.abs(values)
    if np.isnan(a).any():
        first = tuple(int(i) for i in np.argwhere(np.isnan(a))[0])
        raise CodecError(f"value at index {first} is NaN; E2M1 has no code for it. Keep this tensor in 16 bits.")
    return a
