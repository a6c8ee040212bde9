"""GGUF's MXFP4 block: 17 bytes for 32 elements.

Byte 0 is the E8M0 scale; byte 1 + j holds element j in its low nibble and element j + 16 in its high nibble, j = 0..15.
A matrix is its rows one after another, blocks along in_features. The codes are those of OCP MX: ggml tabulates doubled
element values and halves the scale, which is the same number.

Source:
    `block_mxfp4` in ggml's ggml-common.h; the class `MXFP4` of the gguf library.
"""

import numpy as np

from mxconv.arrays import U8
from mxconv.codecs.mxfp4 import BLOCK
from mxconv.errors import CodecError

BLOCK_BYTES = 1 + BLOCK // 2


def pack_blocks(codes: U8, scales: U8) -> U8:
    """(rows, num_blocks * 32) codes 0..15 and (rows, num_blocks) scales -> (rows, num_blocks * 17) bytes.

    Raises:
        CodecError: the shapes do not belong together.
    """
    rows, columns = codes.shape
    if columns % BLOCK or scales.shape != (rows, columns // BLOCK):
        raise CodecError(f"codes {codes.shape} with scales {scales.shape}; one scale per 32 columns is required.")
    halves = codes.reshape(rows, -1, 2, BLOCK // 2)
    blocks = np.empty((rows, columns // BLOCK, BLOCK_BYTES), np.uint8)
    blocks[..., 0] = scales
    blocks[..., 1:] = halves[:, :, 0] | halves[:, :, 1] << 4
    return blocks.reshape(rows, -1)


def unpack_blocks(blocks: U8) -> tuple[U8, U8]:
    """(rows, num_blocks * 17) bytes -> codes (rows, num_blocks * 32) and scales (rows, num_blocks).

    Raises:
        CodecError: a row is no whole number of blocks.
    """
    rows, num_bytes = blocks.shape
    if num_bytes % BLOCK_BYTES:
        raise CodecError(f"rows of {num_bytes} bytes; a multiple of 17 is required.")
    parts = blocks.reshape(rows, -1, BLOCK_BYTES)
    nibbles = np.stack([parts[..., 1:] & 0xF, parts[..., 1:] >> 4], axis=2)
    return nibbles.reshape(rows, -1), np.ascontiguousarray(parts[..., 0])
