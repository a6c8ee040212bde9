"""Array type aliases, and memory for arrays. 16-bit floats travel as their bit patterns, in `U16`."""

import math
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
F32 = NDArray[np.float32]
U8 = NDArray[np.uint8]
U16 = NDArray[np.uint16]
U32 = NDArray[np.uint32]
U64 = NDArray[np.uint64]
I8 = NDArray[np.int8]
I16 = NDArray[np.int16]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
Bool = NDArray[np.bool_]

Number = TypeVar("Number", bound=np.generic)

LINE_BYTES = 64  # of a processor's cache


def zeros(shape: tuple[int, ...], dtype: np.dtype[Number]) -> NDArray[Number]:
    """Zeros that begin with a line of the cache, so that no row of whole lines shares one with its neighbours.

    Raises:
        MemoryError, ValueError: there is no room, or there never is.
    """
    count = math.prod(shape)
    room = np.zeros(count + LINE_BYTES // dtype.itemsize, dtype)
    first = -room.__array_interface__["data"][0] % LINE_BYTES // dtype.itemsize
    return room[first : first + count].reshape(shape)


def float32_zeros(shape: tuple[int, ...]) -> F32:
    """`zeros` of float32."""
    return zeros(shape, np.dtype(np.float32))
