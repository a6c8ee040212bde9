"""Array type aliases, and memory for arrays. 16-bit floats travel as their bit patterns, in `U16`."""

import math

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
F32 = NDArray[np.float32]
U8 = NDArray[np.uint8]
U16 = NDArray[np.uint16]
U32 = NDArray[np.uint32]
U64 = NDArray[np.uint64]
I8 = NDArray[np.int8]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
Bool = NDArray[np.bool_]

LINE_BYTES = 64  # of a processor's cache


def float32_zeros(shape: tuple[int, ...]) -> F32:
    """Zeros that begin with a line of the cache, so that no row of whole lines shares one with its neighbours.

    Raises:
        MemoryError, ValueError: there is no room, or there never is.
    """
    count = math.prod(shape)
    room = np.zeros(count + LINE_BYTES // 4, np.float32)
    first = -room.__array_interface__["data"][0] % LINE_BYTES // 4
    return room[first : first + count].reshape(shape)
