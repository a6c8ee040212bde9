"""Activations as int8: 32 values share one float32 scale, as ML-SpecQD §III-D quantizes them for its draft."""

import numpy as np

from mxconv.arrays import F32, I8
from mxconv.errors import CodecError

BLOCK = 32


def quantize_int8(activations: F32) -> tuple[I8, F32]:
    """Round finite float32 to int8, nearest even, symmetric: the largest magnitude of a block becomes ±127.

    Returns:
        codes: (num_tokens, num_blocks * 32) int8 in -127..127, zero-padded.
        scales: (num_tokens, num_blocks) float32; 0 for a block of zeros.

    Raises:
        CodecError: an activation is not finite.
    """
    num_tokens, in_features = activations.shape
    blocks = np.zeros((num_tokens, -(-in_features // BLOCK) * BLOCK), np.float32)
    blocks[:, :in_features] = activations
    blocks = blocks.reshape(num_tokens, -1, BLOCK)
    amax = np.abs(blocks).max(axis=-1)
    if not np.isfinite(amax).all():
        token, block = np.argwhere(~np.isfinite(amax))[0]
        raise CodecError(f"activation block ({token}, {block}) holds {amax[token, block]}; finite values are required.")
    scales = amax / np.float32(127)
    # a block so small that amax / 127 underflows has no usable scale: it quantizes to zeros
    usable = scales >= np.finfo(np.float32).tiny
    scales = np.where(usable, scales, np.float32(0))
    inverse = np.where(usable, np.float32(1) / np.where(usable, scales, np.float32(1)), np.float32(0))
    codes = np.clip(np.rint(blocks * inverse[:, :, None]), -127, 127).astype(np.int8)
    return codes.reshape(num_tokens, -1), scales


def dequantize_int8(codes: I8, scales: F32) -> F32:
    """Values of int8 codes: (num_tokens, num_blocks * 32) float32."""
    num_tokens = codes.shape[0]
    values = codes.reshape(num_tokens, -1, BLOCK).astype(np.float32) * scales[:, :, None]
    return values.reshape(num_tokens, -1)
