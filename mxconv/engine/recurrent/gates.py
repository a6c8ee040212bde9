"""What turns numbers into gates and rates, for one row; a row's bits are its own."""

import numpy as np

from mxconv.arrays import F32

LINEAR_FROM = np.float32(20)  # softplus(x) is x in float32


def sigmoid(row: F32) -> F32:
    """1 / (1 + exp(-x))."""
    with np.errstate(over="ignore"):  # exp(-x) is infinite from x = -89 on, and the result rightly 0
        return np.float32(1) / (np.float32(1) + np.exp(-row))


def softplus(row: F32) -> F32:
    """log(1 + exp(x))."""
    return np.where(row > LINEAR_FROM, row, np.log1p(np.exp(np.minimum(row, LINEAR_FROM))))
