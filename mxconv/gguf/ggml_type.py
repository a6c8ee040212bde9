"""The element types of a GGUF file's tensors, and the values of their blocks as the gguf library decodes them.

A quantized tensor is a run of blocks along in_features, each of some bytes for 32 to 256 elements. Which types there
are and how long a block is, the library tabulates; what a block means, it computes. A type that it cannot decode is
not read.
"""

from dataclasses import dataclass
from functools import cache

import gguf
import numpy as np
from numpy.typing import NDArray

from mxconv.arrays import F32, U8
from mxconv.codecs.float16 import BF16
from mxconv.codecs.mxfp4 import dequantize_mxfp4
from mxconv.gguf.gguf_block import unpack_blocks

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
