"""MXFP4: blocks of 32 E2M1 elements along in_features that share one E8M0 scale.

The element code is the same under every scale rule but `ggml`; the rules differ in the exponent that a block's
largest magnitude (amax) selects:

    ocp    floor(log2(amax)) - 2                          OCP MX v1.0, the default
    even   the same after amax is rounded up from mantissa 1.75    compressed-tensors, Quark, vLLM
    ceil   ceil(log2(amax / 6))                           ModelOpt, NNCF: nothing saturates
    ggml   as ocp, element ties toward zero               llama.cpp
    mse    ocp or one more, whichever has the smaller squared error in the block

Normative text: formats/mxfp4.md.
"""

from typing import Literal, get_args

import numpy as np

from mxconv.arrays import F32, I32, U8
from mxconv.codecs.e2m1 import VALUES, decode_e2m1, encode_e2m1, encode_e2m1_toward_zero
from mxconv.codecs.e8m0 import BIAS, decode_e8m0, encode_e8m0, floor_log2
from mxconv.codecs.fold import fold
from mxconv.errors import CodecError

BLOCK = 32
MAX_EXPONENT = 125  # 6 * 2^125 is finite in float32, 6 * 2^126 is not: finite weights stay finite
ScaleRule = Literal["ocp", "even", "ceil", "ggml", "mse"]
SCALE_RULES: tuple[ScaleRule, ...] = get_args(ScaleRule)


class NonFiniteError(CodecError):
    """A weight has no code; says which."""

    def __init__(self, row: int, column: int, value: float) -> None:
        super().__init__(f"value at index ({row}, {column}) is {value}; MX formats need finite values.")
        self.row, self.column, self.value = row, column, value

    def __reduce__(self) -> tuple[object, ...]:
        return NonFiniteError, (self.row, self.column, self.value)


def quantize_mxfp4(values: F32, scale_rule: ScaleRule = "ocp") -> tuple[U8, U8]:
    """Quantize rows of finite float32 to MXFP4; a last partial block is padded with zeros.

    Returns:
        codes: (rows, num_blocks * 32) uint8 E2M1 codes.
        scales: (rows, num_blocks) uint8 E8M0.

    Raises:
        NonFiniteError: a value is not finite; it names the first one's index.
        CodecError: the rule is unknown.
    """
    if scale_rule not in SCALE_RULES:
        raise CodecError(f"scale rule {scale_rule!r}: unknown; one of {', '.join(SCALE_RULES)} is required.")
    if not np.isfinite(values).all():
        row, column = np.argwhere(~np.isfinite(values))[0]
        raise NonFiniteError(int(row), int(column), float(values[row, column]))
    rows, columns = values.shape
    blocks = np.zeros((rows, -(-columns // BLOCK) * BLOCK), np.float32)
    blocks[:, :columns] = values
    blocks = blocks.reshape(rows, -1, BLOCK)
    amax = np.abs(blocks).max(axis=-1)

    if scale_rule == "mse":
        codes, scales = _smaller_error(blocks, _block_exponents(amax, "ocp"))
    else:
        scales = encode_e8m0(_block_exponents(amax, scale_rule))
        encode = encode_e2m1_toward_zero if scale_rule == "ggml" else encode_e2m1
        codes = encode(_divide(blocks, scales))
    zero = amax == 0  # a block of zeros has code 0 throughout, whatever the signs of its zeros
    codes[zero] = 0
    scales[zero] = 0
    return codes.reshape(rows, -1), scales


def dequantize_mxfp4(codes: U8, scales: U8) -> F32:
    """Values of (rows, num_blocks * 32) codes and (rows, num_blocks) scales: exact in float32.

    Infinite where a scale above 2^125 takes a value beyond float32.

    Raises:
        CodecError: the shapes do not belong together, or a code is above 15.
    """
    rows, columns = codes.shape
    if scales.shape != (rows, columns // BLOCK) or columns % BLOCK:
        raise CodecError(f"codes {codes.shape} with scales {scales.shape}; one scale per 32 columns is required.")
    with np.errstate(over="ignore"):  # foreign scales above MAX_EXPONENT may reach infinity
        values = decode_e2m1(codes).reshape(rows, -1, BLOCK) * decode_e8m0(scales)[:, :, None]
    return values.reshape(rows, columns)


def _block_exponents(amax: F32, scale_rule: ScaleRule) -> I32:
    """Scale exponents of blocks by their largest magnitude; a block of zeros gets the smallest."""
    if scale_rule == "ceil":
        mantissa, exponent = np.frexp(amax)  # amax = mantissa * 2^exponent, mantissa in [0.5, 1)
        exponents = exponent.astype(np.int32) - np.where(mantissa > 0.75, 2, 3)  # 6 = 0.75 * 2^3
    elif scale_rule == "even":
        mantissa, exponent = np.frexp(amax)
        exponents = exponent.astype(np.int32) - np.where(mantissa >= 0.875, 2, 3)  # 0.875 * 2 = 1.75
    else:
        exponents = floor_log2(amax) - 2
    exponents[amax == 0] = -BIAS
    return np.minimum(exponents, MAX_EXPONENT).astype(np.int32)


def _divide(blocks: F32, scales: U8) -> F32:
    """Block values over their scale: exact, or so small that they round to zero anyway."""
    return np.ldexp(blocks, BIAS - scales.astype(np.int32)[:, :, None])


def _smaller_error(blocks: F32, exponents: I32) -> tuple[U8, U8]:
    """Codes and scales of the OCP exponent or one more; on equal squared error the OCP one."""
    candidates = []
    for step in (0, 1):
        scales = encode_e8m0(np.minimum(exponents + step, MAX_EXPONENT))
        scaled = _divide(blocks, scales)
        codes = encode_e2m1(scaled)
        # errors in units of the scale: exact in float64, then summed in a fixed order
        errors = fold((scaled.astype(np.float64) - VALUES[codes]) ** 2)
        candidates.append((codes, scales, errors * 4.0**step))
    (codes, scales, errors), (wider_codes, wider_scales, wider_errors) = candidates
    wider = wider_errors < errors
    codes[wider] = wider_codes[wider]
    scales[wider] = wider_scales[wider]
    return codes, scales
