"""Sums in a fixed order.

A floating-point sum depends on its order, and `np.sum` chooses one by shape and version. Wherever bits must not
depend on who adds, we fold: the upper half is added onto the lower half until one number is left.
"""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

SHORT_AXIS = 16  # NumPy's inner loop runs along the fastest axis and is slow when that is short

Float = TypeVar("Float", np.float32, np.float64)


def fold(values: NDArray[Float]) -> NDArray[Float]:
    """Sum over the last axis; the order depends on its length alone.

    Args:
        values: (..., n) floats. An odd middle element waits for the next round.

    Returns:
        (...,) floats; 0 where n is 0.

    >>> float(fold(np.array([1.0, 2, 3, 4, 5])))  # ((1 + 4) + 3) + (2 + 5)
    15.0
    """
    if values.shape[-1] == 0:
        return np.zeros(values.shape[:-1], values.dtype)
    return fold_in_place(values.copy())


def fold_in_place(values: NDArray[Float], axis: int = -1) -> NDArray[Float]:
    """The same sums along any axis of at least one number; `values` is scratch and is overwritten."""
    lanes = np.moveaxis(values, axis, 0)
    width = len(lanes)
    while width > 1:
        if width <= SHORT_AXIS and lanes.strides[0] == lanes.itemsize:
            lanes = np.ascontiguousarray(lanes[:width])
        half = width // 2
        np.add(lanes[:half], lanes[width - half : width], out=lanes[:half])
        width -= half
    result: NDArray[Float] = lanes[0]
    return result
