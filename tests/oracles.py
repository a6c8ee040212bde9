"""Other people's libraries as oracles. Each adapter states rounding, layout and known defects.

An adapter takes and returns plain arrays in our layout (codes one a byte, row-major), so that a test only compares.
"""

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
U8 = NDArray[np.uint8]

BLOCK = 32


def e2m1_by_ml_dtypes(values: F32) -> U8:
    """E2M1 codes of values that are already divided by their scale.

    Rounding: nearest, ties to even, saturating at ±6 (infinities too); the sign of zero is kept.
    Layout: one code a byte, bits 7..4 zero.
    Known defects: NaN has no code and becomes some number; do not feed it.
    """
    return values.astype(ml_dtypes.float4_e2m1fn).view(np.uint8)


def e2m1_values_by_ml_dtypes(codes: U8) -> F32:
    """Values of E2M1 codes 0..15: exact."""
    return codes.view(ml_dtypes.float4_e2m1fn).astype(np.float32)


def e8m0_values_by_ml_dtypes(scales: U8) -> F32:
    """Values of E8M0 bytes: exact, 2^-127 as a subnormal, 0xFF as NaN."""
    return scales.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)


def mxfp4_by_gguf(values: F32) -> tuple[U8, U8, F32]:
    """Codes, scales and dequantized values of (rows, n * 32) by gguf-py's NumPy `MXFP4`.

    Rounding: the candidate of least absolute error, the first one on a tie: toward zero; -0 becomes +0.
    Scale: floor(log2(amax)) - 2.
    Layout: 17 bytes a block: scale, then 16 bytes of which byte j holds elements j (low nibble) and j + 16.
    Known defects: the scale is cast to a byte without a clamp, so it wraps where amax < 2^-125; the logarithm is taken
    in binary32, so it rounds up where amax lies within a few units in the last place under a power of two (no BF16 or
    FP16 value does); see `gguf_scale_is_sound`.
    """
    from gguf import GGMLQuantizationType, quants

    with np.errstate(over="ignore", invalid="ignore"):  # of the wrapped scales
        packed = quants.quantize(values, GGMLQuantizationType.MXFP4)
    blocks = packed.reshape(len(values), -1, 17)
    nibbles = blocks[:, :, 1:]
    codes = np.concatenate([nibbles & 0xF, nibbles >> 4], axis=-1).reshape(values.shape)
    return codes, blocks[:, :, 0], quants.dequantize(packed, GGMLQuantizationType.MXFP4)


def gguf_scale_is_sound(values: F32) -> NDArray[np.bool_]:
    """(rows, n): whether neither of gguf-py's two scale defects touches a block."""
    amax = np.abs(values.reshape(len(values), -1, BLOCK)).max(axis=-1)
    with np.errstate(divide="ignore"):
        rounded_log = np.floor(np.log2(amax))  # in binary32, as gguf-py computes it
    exact_log = np.where(amax > 0, np.frexp(amax)[1] - 1, -np.inf)
    return (amax == 0) | ((amax >= 2.0**-125) & (rounded_log == exact_log))


def mxfp4_by_compressed_tensors(values: F32) -> tuple[U8, U8]:
    """Codes and scales of (rows, n * 32) by compressed-tensors' `mxfp4-pack-quantized`.

    Rounding: x / scale, clamped to ±6, nearest, ties to even.
    Scale: amax rounded up to the next power of two from mantissa 1.75, then floor(log2) - 2, clamped to 0..255.
    Layout: byte j holds elements 2j (low nibble) and 2j + 1.
    Known defects: a quotient x / scale that is -0 gets code 0, be the weight -0 or so small that it underflows (others
    that round to zero keep their sign); from amax 1.75 * 2^127 on, rounding overflows and the scale is 1; see
    `compressed_tensors_is_sound`. Where weights, and so scales, are FP16, scales below 2^-24 are lost: give it float32.
    """
    import torch
    from compressed_tensors.compressors.mxfp4.base import MXFP4PackedCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils.helpers import calculate_qparams

    arguments = QuantizationArgs(
        num_bits=4,
        type="float",
        strategy="group",
        group_size=BLOCK,
        symmetric=True,
        dynamic=False,
        scale_dtype=torch.uint8,
        zp_dtype=torch.uint8,
    )
    weight = torch.from_numpy(values)
    blocks = weight.reshape(len(values), -1, BLOCK)
    scale, _ = calculate_qparams(blocks.amin(-1), blocks.amax(-1), arguments)
    scheme = QuantizationScheme(targets=["Linear"], weights=arguments)
    stored = MXFP4PackedCompressor.compress({"weight": weight, "weight_scale": scale}, scheme)
    pairs = stored["weight_packed"].numpy()
    codes = np.stack([pairs & 0xF, pairs >> 4], axis=-1).reshape(values.shape)
    return codes, stored["weight_scale"].numpy()


def int8_by_compressed_tensors(values: F32, scales: F32) -> NDArray[np.int8]:
    """Elements of (rows, n * 32) for given scales, one a block, by compressed-tensors' int8 groups.

    Rounding: x / scale, nearest, ties to even, clamped.
    Known defects: it clamps to -128, which MXINT8 has not; here that becomes -127.
    """
    import torch
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle.forward import quantize

    arguments = QuantizationArgs(num_bits=8, type="int", strategy="group", group_size=BLOCK, symmetric=True)
    scale = torch.from_numpy(scales)
    found = quantize(torch.from_numpy(values), scale, torch.zeros_like(scale), arguments, dtype=torch.int8)
    return np.maximum(found.numpy(), -127)


def compressed_tensors_is_sound(values: F32, scales: U8) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Blocks (rows, n) and elements (rows, n * 32) that none of compressed-tensors' defects touches."""
    blocks = values.reshape(len(values), -1, BLOCK)
    sound_blocks = np.abs(blocks).max(axis=-1) < 1.75 * 2.0**127
    quotients = np.ldexp(blocks, 127 - scales.astype(np.int32)[:, :, None])
    sound = sound_blocks[:, :, None] & ~((quotients == 0) & np.signbit(quotients))
    return sound_blocks, sound.reshape(values.shape)
