"""8-bit weights times int8 activations: the LM head of a draft whose other matrices have 4 bits.

MXINT8 weights are int8 elements in blocks of 32 with an E8M0 scale. An element is an integer as it is stored, so there
is no table to look it up in, and the arithmetic is that of the 4-bit drafts.
"""

from dataclasses import dataclass

import numpy as np

from mxconv.arrays import F32, I8, U8
from mxconv.codecs.e8m0 import decode_e8m0
from mxconv.codecs.vnni8 import unpack_quads, unpack_scales
from mxconv.kernels.late_scaling import LateScaledMatrix

ELEMENT_SCALE = 2.0**-6  # OCP MX v1.0: an INT8 element is its integer times 2^-6


@dataclass(frozen=True, eq=False)
class EightBitMatrix(LateScaledMatrix):
    """Implements `Matrix` for drafts whose weights are int8."""

    elements: I8  # (row tiles, column quads, 64)

    def integers(self, start: int, stop: int) -> I8:
        return unpack_quads(self.elements[start:stop])


def mxint8_matrix(shape: tuple[int, int], elements: U8, scales: U8) -> EightBitMatrix:
    """The MXINT8 draft of a matrix.

    Args:
        shape: (out_features, in_features).
        elements: (row tiles, column quads, 64) bytes of int8 elements in -127..127.
        scales: (row tiles, blocks, 16) E8M0.
    """

    def block_scales(start: int, stop: int) -> F32:
        return unpack_scales(decode_e8m0(scales[start:stop])) * np.float32(ELEMENT_SCALE)

    return EightBitMatrix(shape, block_scales, elements.view(np.int8))
