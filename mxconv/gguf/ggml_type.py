"""The element types of a GGUF file's tensors, and their blocks: read by the gguf library, MXFP4 and Q8_0 written here.

A quantized tensor is a run of blocks along in_features, each of some bytes for 32 to 256 elements. Which types there
are and how long a block is, the library tabulates; what a block means, it computes. A type that it cannot decode is
not read.

MXFP4: byte 0 is the E8M0 scale; byte 1 + j holds element j in its low nibble and element j + 16 in its high nibble.
The codes are those of OCP MX: ggml tabulates doubled element values and halves the scale, which is the same number.

Q8_0: a binary16 scale, little-endian, then 32 int8. MXINT8 fits in where 2^(scale - 127 - 6) is a binary16 number.

Source:
    `block_mxfp4` and `block_q8_0` in ggml's ggml-common.h; the classes `MXFP4` and `Q8_0` of the gguf library.
"""

from dataclasses import dataclass
from functools import cache

import gguf
import numpy as np
from numpy.typing import NDArray

from mxconv.arrays import F32, I8, U8
from mxconv.codecs.e8m0 import decode_e8m0
from mxconv.codecs.float16 import BF16
from mxconv.codecs.mxfp4 import BLOCK, dequantize_mxfp4
from mxconv.codecs.mxint8 import FRACTION_BITS
from mxconv.codecs.vnni8 import QUAD, TILE_ROWS
from mxconv.errors import CodecError

FLOATS = ("F32", "F16", "BF16")
MXFP4 = "MXFP4"


@dataclass(frozen=True)
class GgmlType:
    """One element type."""

    name: str  # as GGML names it
    block: int  # elements of a block; 1 of a float
    block_bytes: int

    @property
    def dtype(self) -> str:
        """The dtype that its tensors read as: their own; BF16, which has all of MXFP4; or F32, as decoded."""
        return self.name if self.name in FLOATS else "BF16" if self.name == MXFP4 else "F32"

    @property
    def is_rounded(self) -> bool:
        """Whether no 16-bit float holds its values: they are F32, and --dtype rounds them."""
        return self.name not in (*FLOATS, MXFP4)


@cache
def ggml_type(number: int) -> GgmlType | None:
    """The type of this number; None where the gguf library does not know it, or cannot decode it."""
    try:
        kind = gguf.GGMLQuantizationType(number)
        block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        if kind.name not in FLOATS:
            _decode(np.zeros((1, block_bytes), np.uint8), kind)
    except (ValueError, KeyError, NotImplementedError):
        return None
    return GgmlType(kind.name, block, block_bytes)


@cache
def readable_types() -> tuple[str, ...]:
    """The names of all types that are read."""
    found = (ggml_type(kind.value) for kind in gguf.GGMLQuantizationType)
    return tuple(each.name for each in found if each is not None)


def decode_blocks(blocks: U8, name: str) -> NDArray[np.generic]:
    """The values of whole blocks.

    Args:
        blocks: (..., bytes of a row).
        name: the type's, no float's.

    Returns:
        (..., in_features): of MXFP4 BF16 patterns, of any other type float32. A scale that is no number gives values
        that are none.
    """
    if name == MXFP4:
        values = dequantize_mxfp4(*unpack_blocks(blocks.reshape(-1, blocks.shape[-1])))
        return BF16.encode(values).reshape(*blocks.shape[:-1], values.shape[-1])
    return _decode(blocks, gguf.GGMLQuantizationType[name])


def _decode(blocks: U8, kind: gguf.GGMLQuantizationType) -> F32:
    if not blocks.size:  # which the library cannot reshape
        block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        return np.zeros((*blocks.shape[:-1], blocks.shape[-1] // block_bytes * block), np.float32)
    with np.errstate(all="ignore"):
        return gguf.quants.dequantize(blocks, kind)


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
