"""One processing element of SPEQ's machine: FP16 activations by BSFP weights, FP32 accumulation.

full mode        one weight and one activation a cycle, into one accumulator: exponents are added; the significands'
                 product is put together from the weight's leading bit and two 5-bit halves,
                 1.hhhhhlllll * m = (1 * m << 10) + (h * m << 5) + l * m
quantize mode    one activation and three weights a cycle, one of each of three weight groups, into three accumulators:
                 weights are powers of two, exponents are added and the activation's significand passes through

A weight arrives as the decoder's bits (codecs/bsfp/speq.py). The order of sums is the order of the inputs. The paper's
section IV-C gives the dataflow and the widths; how its circuit rounds, and how a tile sums its elements, it does not
say: here each sum is rounded to the nearest FP32 number, and one element is computed alone.
"""

from collections.abc import Sequence

import numpy as np

from mxconv.arrays import U8, U16
from mxconv.codecs.bsfp.speq import DecodedBits, decode_logic
from mxconv.cost.accelerator.fp32 import ZERO, Term, add, bits_of
from mxconv.errors import CodecError

BIAS = 15
MANTISSA_BITS = 10
HALF_BITS = 5
DRAFT_LANES = 3
ACTIVATION_BITS = 16
# that a PE takes in a cycle: a whole weight less its unused exponent bit, or sign and 4 exponent bits of three
INPUT_BITS = {"full": ACTIVATION_BITS + 1 + 4 + MANTISSA_BITS, "quantize": ACTIVATION_BITS + DRAFT_LANES * (1 + 4)}


def full_dot(activations: U16, wq: U8, wr: U16) -> tuple[int, int]:
    """A dot product in full mode.

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
    """Dot products of three weight groups in quantize mode: the nibbles alone, as powers of two.

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
