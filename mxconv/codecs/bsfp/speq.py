"""The paper's BSFP: its remapped exponents as a segment table, its bit layout, its decoder's logic, its outlier policy.

SPEQ (arXiv 2510.18525) notes that trained FP16 weights stay below 2.0, so the top exponent bit is free. It spends that
bit on a flag that says whether the three upper exponent bits were remapped to make the draft finer where weights are:

    exponent   0,1  2,3  4,5  6,7   8    9   10   11  12,13  14,15
    code       001  001  011  011  100  000  101  010  110    111
    flag        1    0    1    0    0    1    0    1    0      0

Wq is the sign and the code (4 bits); Wr is the flag, the exponent's lowest bit and the mantissa (12 bits). BF16
exponents 112..127 take the same places, with three padding zeros below the mantissa.
"""

from dataclasses import dataclass

import numpy as np

from mxconv.arrays import U8, U16
from mxconv.codecs.bsfp.table import SegmentTable
from mxconv.codecs.float16 import BF16, FP16, MAGNITUDE_MASK, FloatFormat
from mxconv.errors import CodecError

CODE_OF_EXPONENT = np.array([1, 1, 1, 1, 3, 3, 3, 3, 4, 0, 5, 2, 6, 6, 7, 7], np.uint8)
FLAG_OF_EXPONENT = np.array([1, 1, 0, 0, 1, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0], np.uint8)
FIRST_EXPONENT = (9, 0, 11, 4, 8, 10, 12, 14)  # of each code's segment
DRAFT_EXPONENT = (9, 2, 11, 6, 8, 10, 12, 14)  # of each code's level 2^(e - 15)
BF16_OFFSET = 112  # BF16 exponent field of the paper's exponent 0
LIMIT, TARGET = (
    2.0,
    1.999,
)  # of Algorithm 1: a tensor beyond the limit is scaled so that its largest weight fits; that rounds


def paper_table(float_format: FloatFormat) -> SegmentTable:
    """SPEQ's remapping as segments: each spans four octaves, of which it uses one, two or four."""
    offset = BF16_OFFSET if float_format == BF16 else 0
    starts = tuple((offset + e) * float_format.patterns_per_octave for e in FIRST_EXPONENT)
    levels = tuple(2.0 ** (e - 15) for e in DRAFT_EXPONENT)
    return SegmentTable(float_format, float_format.mantissa_bits + 2, (starts,), levels, "paper")


def encode_layout(patterns: U16, float_format: FloatFormat) -> tuple[U8, U16]:
    """SPEQ's stored bits of weights with an exponent of 0..15 (FP16) or 112..127 (BF16).

    Returns:
        wq: (...,) uint8, sign << 3 | code.
        wr: (...,) uint16 of 12 bits, flag << 11 | e0 << 10 | mantissa.

    Raises:
        CodecError: an exponent lies outside the window.
    """
    magnitudes = patterns & MAGNITUDE_MASK
    exponents = (magnitudes >> float_format.mantissa_bits).astype(np.int32)
    if float_format == BF16:
        exponents -= BF16_OFFSET
    if exponents.size and (exponents.min() < 0 or exponents.max() > 15):
        raise CodecError("SPEQ layout: an exponent lies outside the window of 16; rescale the tensor first.")
    mantissas = magnitudes & (float_format.patterns_per_octave - 1)
    mantissas = mantissas << (FP16.mantissa_bits - float_format.mantissa_bits)
    wq = CODE_OF_EXPONENT[exponents] | (patterns >> 12 & 0x8).astype(np.uint8)
    flags = FLAG_OF_EXPONENT[exponents].astype(np.uint16)
    wr = flags << 11 | (exponents & 1).astype(np.uint16) << 10 | mantissas
    return wq, wr.astype(np.uint16)


@dataclass(frozen=True)
class DecodedBits:
    """What the decoder hands to a processing element; exponents are 4 bits, counted in the window."""

    sign: U8
    draft_exponent: U8
    full_exponent: U8
    mantissa: U16  # 10 bits


def decode_logic(wq: U8, wr: U16) -> DecodedBits:
    """SPEQ's decoder as gates: one NOR finds the two moved codes, multiplexers undo the move.

    Codes 000 and 010 (c2 = c0 = 0) were moved from exponents 9 and 11. In the draft, the NOR selects {1, 0, c1, 1}
    over {c2, c1, c0, 0}. In the full weight, the flag selects {NOR, c1 AND NOT NOR, c1 AND NOR} over the code itself.

    Source:
        SPEQ Fig. 5.
    """
    c2, c1, c0 = (wq >> 2) & 1, (wq >> 1) & 1, wq & 1
    moved = 1 ^ (c2 | c0)  # NOR
    draft = np.where(moved, 0b1001 | c1 << 1, c2 << 3 | c1 << 2 | c0 << 1)
    flag = (wr >> 11 & 1).astype(np.uint8)
    e0 = (wr >> 10 & 1).astype(np.uint8)
    remapped = moved << 2 | (c1 & (1 ^ moved)) << 1 | (c1 & moved)
    upper = np.where(flag, remapped, wq & 0x7)
    return DecodedBits(
        sign=(wq >> 3).astype(np.uint8),
        draft_exponent=draft.astype(np.uint8),
        full_exponent=(upper << 1 | e0).astype(np.uint8),
        mantissa=(wr & 0x3FF).astype(np.uint16),
    )


def decode_layout(wq: U8, wr: U16, float_format: FloatFormat) -> U16:
    """The 16-bit patterns of SPEQ's stored bits: the inverse of `encode_layout`."""
    bits = decode_logic(wq, wr)
    exponents = bits.full_exponent.astype(np.uint16) + (BF16_OFFSET if float_format == BF16 else 0)
    mantissas = bits.mantissa >> (FP16.mantissa_bits - float_format.mantissa_bits)
    magnitudes = exponents << float_format.mantissa_bits | mantissas
    return (bits.sign.astype(np.uint16) << 15 | magnitudes).astype(np.uint16)


def rescale_factor(max_abs: float) -> float:
    """The factor of SPEQ Algorithm 1 as a float32 value: 1.999 / max|w| where max|w| > 2, else 1."""
    return float(np.float32(TARGET / max_abs)) if max_abs > LIMIT else 1.0


def rescale(patterns: U16, factor: float, float_format: FloatFormat) -> U16:
    """Weights times factor, in float32, rounded to the format: nearest, ties to even. Shape unchanged."""
    if factor == 1.0:
        return patterns
    return float_format.encode(float_format.decode(patterns) * np.float32(factor))


def undo_rescale(patterns: U16, factor: float, float_format: FloatFormat) -> U16:
    """Weights over factor, in float32, rounded to the format: the reconstruction, a rounding away from the source."""
    if factor == 1.0:
        return patterns
    return float_format.encode(float_format.decode(patterns) / np.float32(factor))
