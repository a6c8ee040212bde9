"""GGUF's blocks of 32 elements: MXFP4 in 17 bytes, Q8_0 in 34.

MXFP4: byte 0 is the E8M0 scale; byte 1 + j holds element j in its low nibble and element j + 16 in its high nibble.
A matrix is its rows one after another, blocks along in_features. The codes are those of OCP MX: ggml tabulates doubled
element values and halves the scale, which is the same number.

Q8_0: a binary16 scale, little-endian, then 32 int8. MXINT8 fits in where 2^(scale - 127 - 6) is a binary16 number.

Source:
    `block_mxfp4` and `block_q8_0` in ggml's ggml-common.h; the classes `MXFP4` and `Q8_0` of the gguf library.
"""

import numpy as np

from mxconv.arrays import I8, U8
from mxconv.codecs.e8m0 import decode_e8m0
from mxconv.codecs.mxfp4 import BLOCK
from mxconv.codecs.mxint8 import FRACTION_BITS
from mxconv.codecs.vnni8 import QUAD, TILE_ROWS
from mxconv.errors import CodecError

BLOCK_BYTES = 1 + BLOCK // 2
Q8_0_BYTES = 2 + BLOCK
Q8_0_SCALES = range(127 + FRACTION_BITS - 24, 127 + FRACTION_BITS + 16)  # 2^-24 to 2^15


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


def fits_q8_0(elements: I8, scales: U8) -> bool:
    """Whether Q8_0 has every scale of an MXINT8 matrix.

    Args:
        elements: (row tiles, column quads, 64), as stored.
        scales: (row tiles, blocks, 16), as stored. 0 may be that of a block of zeros, whose scale says nothing.
    """
    zero = scales == 0
    if not (zero | ((scales >= Q8_0_SCALES.start) & (scales < Q8_0_SCALES.stop))).all():
        return False
    blocks = elements.reshape(*scales.shape[:2], -1, TILE_ROWS, QUAD)
    return not (zero.any() and (blocks.any(axis=(2, 4)) & zero).any())


def pack_q8_0(elements: I8, scales: U8) -> U8:
    """MXINT8 that fits: (rows, num_blocks * 32) and E8M0 (rows, num_blocks) -> (rows, num_blocks * 34) bytes.

    Raises:
        CodecError: the shapes do not belong together.
    """
    rows, columns = elements.shape
    if columns % BLOCK or scales.shape != (rows, columns // BLOCK):
        raise CodecError(f"elements {elements.shape} with scales {scales.shape}; one scale per 32 columns is required.")
    steps = np.where(scales == 0, np.float32(0), decode_e8m0(scales) * np.float32(2.0**-FRACTION_BITS))
    blocks = np.empty((rows, columns // BLOCK, Q8_0_BYTES), np.uint8)
    blocks[..., :2] = steps.astype("<f2")[..., None].view(np.uint8)
    blocks[..., 2:] = elements.reshape(rows, -1, BLOCK).view(np.uint8)
    return blocks.reshape(rows, -1)
