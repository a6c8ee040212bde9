"""Sums in a fixed order.

A floating-point sum depends on its order, and `np.sum` chooses one by shape and version. Wherever bits must not
depend on who adds, we fold: the upper half is added onto the lower half until one number is left.
"""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Float = TypeVar("Float", np.float32, np.float64)


def fold(values: NDArray[Float]) -> NDArray[Float]:
    """Sum over the last axis; the order depends on its length alone.

    Args:
        values: (..., n) floats. An odd middle element waits for the next round.

    Returns:
        (...,) floats; 0 where n is 0.
    """
    width = values.shape[-1]
    if width == 0:
        return np.zeros(values.shape[:-1], values.dtype)
    while width > 1:
        half = width // 2
        folded = values[..., : width - half].copy()
        folded[..., :half] += values[..., width - half : width]
        values, width = folded, width - half
    return values[..., 0]
