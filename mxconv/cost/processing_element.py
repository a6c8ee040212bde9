"""One processing element of SPEQ's accelerator, bit for bit: FP16 activations by BSFP weights, FP32 accumulation.

full mode        one weight and one activation a cycle into one accumulator. Exponents are added; the product of the
                 significands is the sum of the weight's leading bit and two 5-bit halves,
                 1.hhhhhlllll * m = (1 * m << 10) + (h * m << 5) + l * m
quantize mode    one activation and three weights a cycle, one of each of three weight groups, into three accumulators.
                 Weights are powers of two: exponents are added and the activation's significand is unchanged

A weight arrives as the decoder's bits (codecs/bsfp/speq.py). Products are summed in the order of the inputs. Section
IV-C of the paper (arXiv 2510.18525) gives the dataflow and the widths. It does not say how the circuit rounds or how a
tile sums its elements: here each sum is rounded to the nearest FP32 number, and one element is computed alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mxconv.arrays import U8, U16
from mxconv.codecs.bsfp.speq import DecodedBits, decode_logic
from mxconv.errors import CodecError

BIAS = 15
MANTISSA_BITS = 10
HALF_BITS = 5
DRAFT_LANES = 3
ACTIVATION_BITS = 16
# that a PE takes in a cycle: a whole weight less its unused exponent bit, or sign and 4 exponent bits of three
INPUT_BITS = {"full": ACTIVATION_BITS + 1 + 4 + MANTISSA_BITS, "quantize": ACTIVATION_BITS + DRAFT_LANES * (1 + 4)}
FRACTION_BITS = 24  # of an FP32 significand, the leading one included
LEAST_EXPONENT = -149  # of the last place of the smallest FP32 numbers
LARGEST_EXPONENT = 127 - 23


@dataclass(frozen=True)
class Term:
    """(-1)^sign * significand * 2^exponent with an integer significand, so that a product is exact."""

    sign: int
    significand: int
    exponent: int


ZERO = Term(0, 0, 0)


def add(a: Term, b: Term) -> Term:
    """The FP32 number nearest to the exact sum, ties to even. Sums that overflow do not occur here."""
    low = min(a.exponent, b.exponent)
    total = _aligned(a, low) + _aligned(b, low)
    if total == 0:
        return Term(a.sign & b.sign, 0, 0)  # -0 only from two of them
    return _round(Term(int(total < 0), abs(total), low))


def bits_of(term: Term) -> int:
    """The 32-bit pattern of a term that is an FP32 number."""
    if term.significand == 0:
        return term.sign << 31
    rounded = _round(term)
    significand, exponent = rounded.significand, rounded.exponent
    while significand < 1 << FRACTION_BITS - 1 and exponent > LEAST_EXPONENT:
        significand, exponent = significand << 1, exponent - 1
    field = exponent - LEAST_EXPONENT + 1 if significand >> FRACTION_BITS - 1 else 0
    return term.sign << 31 | field << 23 | significand & 0x7FFFFF


def _aligned(term: Term, exponent: int) -> int:
    value = term.significand << term.exponent - exponent
    return -value if term.sign else value


def _round(term: Term) -> Term:
    drop = max(term.significand.bit_length() - FRACTION_BITS, LEAST_EXPONENT - term.exponent)
    if drop <= 0:
        return term
    kept, rest, half = term.significand >> drop, term.significand & (1 << drop) - 1, 1 << drop - 1
    kept += rest > half or (rest == half and kept & 1)  # may carry into a 25th bit, whose last place is then zero
    return Term(term.sign, kept, term.exponent + drop)


def full_dot(activations: U16, wq: U8, wr: U16) -> tuple[int, int]:
    """Compute a dot product in full mode.

    Args:
        activations: (n,) uint16, FP16 patterns.
        wq: (n,) uint8, sign and code of each weight.
        wr: (n,) uint16, its other 12 bits.

    Returns:
        The FP32 pattern of the sum, and the cycles it took.

    Raises:
        CodecError: an activation is infinite or NaN.
    """
    weights = decode_logic(wq, wr)
    total = ZERO
    for index, activation in enumerate(_activations(activations)):
        total = add(total, _full_product(activation, weights, index))
    return bits_of(total), len(activations)


def quantize_dots(activations: U16, wq: U8) -> tuple[list[int], int]:
    """Compute the dot products of three weight groups in quantize mode, with the nibbles as powers of two.

    Args:
        activations: (n,) uint16, FP16 patterns, which the three groups share.
        wq: (3, n) uint8, sign and code of each weight.

    Returns:
        The FP32 patterns of the three sums, and the cycles they took together.

    Raises:
        CodecError: an activation is infinite or NaN, or there are not three groups.
    """
    if wq.shape != (DRAFT_LANES, len(activations)):
        raise CodecError(
            f"weights: shape {wq.shape}; ({DRAFT_LANES}, {len(activations)}) is required: an element has three "
            "accumulators. Pad the groups with zeros."
        )
    weights = decode_logic(wq, np.zeros(wq.shape, np.uint16))
    totals = [ZERO] * DRAFT_LANES
    for index, activation in enumerate(_activations(activations)):
        for lane in range(DRAFT_LANES):
            exponent = activation.exponent + int(weights.draft_exponent[lane, index]) - BIAS
            sign = activation.sign ^ int(weights.sign[lane, index])
            totals[lane] = add(totals[lane], Term(sign, activation.significand, exponent))
    return [bits_of(total) for total in totals], len(activations)


def _full_product(activation: Term, weights: DecodedBits, index: int) -> Term:
    field, mantissa = int(weights.full_exponent[index]), int(weights.mantissa[index])
    leading = int(field > 0)  # subnormal weights have none
    high, low = mantissa >> HALF_BITS, mantissa & (1 << HALF_BITS) - 1
    m = activation.significand
    product = (leading * m << MANTISSA_BITS) + (high * m << HALF_BITS) + low * m
    exponent = max(field, 1) - BIAS - MANTISSA_BITS
    return Term(activation.sign ^ int(weights.sign[index]), product, activation.exponent + exponent)


def _activations(patterns: U16) -> Sequence[Term]:
    fields = patterns >> 10 & 0x1F
    if (fields == 0x1F).any():
        raise CodecError("activation: an infinity or NaN; finite FP16 values are required. Check the model's input.")
    return [
        Term(int(p) >> 15, int(p) & 0x3FF | (field > 0) << MANTISSA_BITS, max(int(field), 1) - BIAS - MANTISSA_BITS)
        for p, field in zip(patterns.tolist(), fields.tolist(), strict=True)
    ]
