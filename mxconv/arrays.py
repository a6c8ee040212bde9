"""Array type aliases. 16-bit floats travel as their bit patterns, in `U16`."""

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
