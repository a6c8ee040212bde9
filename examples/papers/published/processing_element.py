"""One processing element of SPEQ's accelerator, bit for bit: FP16 activations by BSFP weights, FP32 accumulation.

full mode        one weight and one activation a cycle into one accumulator. Exponents are added; the product of the
                 significands is the sum of the weight's leading bit and two 5-bit halves,
                 1.hhhhhlllll * m = (1 * m << 10) + (h * m << 5) + l * m
quantize mode    one activation and three weights a cycle, one of each of three weight groups, into three accumulators.
                 Weights are powers of two: exponents are added and the activation's significand is unchanged

A weight arrives as the decoder's bits (codecs/bsfp/speq.py). Products, exact in FP32, are summed in the order of the
inputs. Section IV-C of the paper (arXiv 2510.18525) gives the dataflow and the widths. It does not say how the circuit
rounds or how a tile sums its elements: here each sum is rounded to the nearest FP32 number, and one element is computed
alone.
"""

import numpy as np

from mxconv.arrays import F32, I64, U8, U16
from mxconv.codecs.bsfp.speq import decode_logic
from mxconv.errors import CodecError

BIAS = 15
MANTISSA_BITS = 10
HALF_BITS = 5
DRAFT_LANES = 3
ACTIVATION_BITS = 16
# that a PE takes in a cycle: a whole weight less its unused exponent bit, or sign and 4 exponent bits of three
INPUT_BITS = {"full": ACTIVATION_BITS + 1 + 4 + MANTISSA_BITS, "quantize": ACTIVATION_BITS + DRAFT_LANES * (1 + 4)}


def full_dot(activations: U16, wq: U8, wr: U16) -> tuple[np.float32, int]:
    """Compute a dot product in full mode.

    Args:
        activations: (n,) uint16, FP16 patterns.
        wq: (n,) uint8, sign and code of each weight.
        wr: (n,) uint16, its other 12 bits.

    Returns:
        The sum, and the cycles it took.

    Raises:
        CodecError: an activation is infinite or NaN.
    """
    weights, (sign, m, exponent) = decode_logic(wq, wr), _parts(activations)
    field, mantissa = weights.full_exponent.astype(np.int64), weights.mantissa.astype(np.int64)
    leading = (field > 0) * m  # subnormal weights have none
    high, low = mantissa >> HALF_BITS, mantissa & (1 << HALF_BITS) - 1
    product = (leading << MANTISSA_BITS) + (high * m << HALF_BITS) + low * m
    exponent = exponent + np.maximum(field, 1) - BIAS - MANTISSA_BITS
    return _sum(sign ^ weights.sign, product, exponent), len(activations)


def quantize_dots(activations: U16, wq: U8) -> tuple[list[np.float32], int]:
    """Compute the dot products of three weight groups in quantize mode, with the nibbles as powers of two.

    Args:
        activations: (n,) uint16, FP16 patterns, which the three groups share.
        wq: (3, n) uint8, sign and code of each weight.

    Returns:
        The three sums, and the cycles they took together.

    Raises:
        CodecError: an activation is infinite or NaN, or there are not three groups.
    """
    if wq.shape != (DRAFT_LANES, len(activations)):
        raise CodecError(
            f"weights: shape {wq.shape}; ({DRAFT_LANES}, {len(activations)}) is required: an element has three "
            "accumulators. Pad the groups with zeros."
        )
    weights, (sign, m, exponent) = decode_logic(wq, np.zeros(wq.shape, np.uint16)), _parts(activations)
    exponents = exponent + weights.draft_exponent.astype(np.int64) - BIAS
    sums = [_sum(sign ^ weights.sign[lane], m, exponents[lane]) for lane in range(DRAFT_LANES)]
    return sums, len(activations)


def _parts(activations: U16) -> tuple[I64, I64, I64]:
    """Sign, integer significand and exponent of FP16 patterns: (-1)^sign * significand * 2^exponent."""
    patterns = activations.astype(np.int64)
    fields = patterns >> MANTISSA_BITS & 0x1F
    if (fields == 0x1F).any():
        raise CodecError("activation: an infinity or NaN; finite FP16 values are required. Check the model's input.")
    significands = patterns & 0x3FF | (fields > 0) << MANTISSA_BITS
    return patterns >> 15, significands, np.maximum(fields, 1) - BIAS - MANTISSA_BITS


def _sum(signs: I64, significands: I64, exponents: I64) -> np.float32:
    """Add the terms one after another, each sum rounded to FP32."""
    terms: F32 = np.ldexp(significands.astype(np.float32), exponents.astype(np.int32))
    total = np.float32(0)
    for term in np.where(signs == 1, -terms, terms):
        total = np.float32(total + term)
    return total
