"""Drafts cut out of FP16 weights as their bits are: what SPEQ's Table I sets beside its remapping.

A trained FP16 weight stays below 2, so its top exponent bit is 0. A cut is the sign and three further bits, and stands
for the number that they leave when all others are 0, with the one that SPEQ Eq. 3 adds to every mantissa:

    bit          15  14   13  12  11  10   9   8   7 ... 0
                  s   0   e3  e2  e1  e0  m9  m8  m7 ... m0
    E3M0 naive    s       e3  e2  e1                           two octaves share a level
    E2M1          s       e3  e2          m9                   four
    E1M2          s       e3              m9  m8               eight
    E2M1 seam     s               e1  e0  m9                   one, but weights four octaves apart have one code
    E1M2 seam     s                   e0  m9  m8               one, but weights two octaves apart have one code

The paper gives the bits of E3M0 (Figure 3), and none for the others. We take each field from its top, as E3M0 does, and
lose what lies between; "seam" is the other reading, adjacent bits. docs/benchmarks.md compares them.

Source:
    SPEQ (arXiv 2510.18525) §III-B, Eq. 4, Figure 3, Table I; Algorithm 1 for weights beyond 2, §IV-A for BF16.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mxconv.arrays import U8, U16
from mxconv.codecs.bsfp.draft import group_values, scales_of
from mxconv.codecs.bsfp.speq import BF16_OFFSET, rescale, rescale_factor
from mxconv.codecs.float16 import BF16, FP16, MAGNITUDE_MASK, SIGN_MASK, FloatFormat
from mxconv.codecs.fold import fold
from mxconv.errors import CodecError


@dataclass(frozen=True)
class Cut:
    """The sign and three bits of an FP16 pattern; `bits` are their positions, the most significant one first."""

    bits: tuple[int, int, int]

    def encode(self, patterns: U16) -> U8:
        """(...,) uint16 FP16 patterns, any of the 65,536 -> (...,) uint8: sign << 3 | the three bits."""
        nibbles = patterns >> 15
        for bit in self.bits:
            nibbles = nibbles << 1 | (patterns >> bit & 1)
        return nibbles.astype(np.uint8)

    @cached_property
    def levels(self) -> tuple[float, ...]:
        """(8,) magnitudes by code: 2^(exponent - 15) * (1 + mantissa / 1024) of what is kept, exponent 0 included."""
        kept = [sum((code >> 2 - place & 1) << bit for place, bit in enumerate(self.bits)) for code in range(8)]
        return tuple(2.0 ** (pattern // 1024 - 15) * (1 + pattern % 1024 / 1024) for pattern in kept)


CUTS = {
    "E3M0 naive": Cut((13, 12, 11)),
    "E2M1": Cut((13, 12, 9)),
    "E1M2": Cut((13, 9, 8)),
    "E2M1 seam": Cut((11, 10, 9)),
    "E1M2 seam": Cut((10, 9, 8)),
}


def cut_draft(patterns: U16, float_format: FloatFormat, cut: Cut) -> tuple[U8, U16]:
    """Cut a tensor, and fit scales to its weights as they were before the clamp and Algorithm 1.

    Returns:
        nibbles: (rows, columns) uint8.
        scales: (rows, num_groups) uint16 BF16 patterns for 128 columns each: sum(w * q) / sum(q * q).

    Raises:
        CodecError: a weight does not fit FP16.
    """
    bits = to_fp16_bits(patterns, float_format)
    largest = FP16.decode((bits & MAGNITUDE_MASK).max(initial=0, keepdims=True))
    nibbles = cut.encode(rescale(bits, rescale_factor(float(largest.item())), FP16))
    signed_levels = np.array(cut.levels + tuple(-level for level in cut.levels), np.float32)
    weights, levels = group_values(float_format.decode(patterns)), group_values(signed_levels[nibbles])
    return nibbles, scales_of(fold(weights * levels), fold(levels * levels))


def to_fp16_bits(patterns: U16, float_format: FloatFormat) -> U16:
    """Weights in the layout of FP16; FP16 ones unchanged, any shape.

    Of a BF16 weight, an exponent below 112 becomes 112, which is FP16's 0, and three zeros follow the mantissa. That
    is exact from 2^-15 on, and below it never: such a weight, zero too, comes to lie between 2^-15 and 2^-14.

    Raises:
        CodecError: a weight is 65536 or more, or not finite.
    """
    bits = patterns
    if float_format == BF16:
        least = BF16_OFFSET * BF16.patterns_per_octave
        mantissas = patterns & (BF16.patterns_per_octave - 1)
        magnitudes = np.maximum((patterns & MAGNITUDE_MASK).astype(np.int32) - least, mantissas)
        bits = np.minimum(magnitudes << 3, MAGNITUDE_MASK).astype(np.uint16) | (patterns & SIGN_MASK)
    if ((bits & MAGNITUDE_MASK) >= FP16.infinity).any():
        raise CodecError("FP16 layout: a weight is 65536 or more, or not finite; less is required. Keep this tensor.")
    return bits
