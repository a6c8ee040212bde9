"""What stands between the matrices of an MLP, element by element; a row's bits are its own."""

from collections.abc import Callable, Mapping

import numpy as np

from mxconv.arch.elements import Activation
from mxconv.arrays import F32
from mxconv.engine import gelu as exact
from mxconv.kernels.rowwise import silu

TANH_SLOPE = np.float32(np.sqrt(2 / np.pi))
TANH_CUBE = np.float32(0.044715)


def gelu(x: F32) -> F32:
    """x times the normal distribution's mass below x, for (num_tokens, n) float32."""
    result = np.empty_like(x)
    for row, values in zip(result, x, strict=True):  # as in `silu`: a vectorized exp may treat ends differently
        row[...] = exact.gelu(values)
    return result


def gelu_tanh(x: F32) -> F32:
    """The same by a hyperbolic tangent, for (num_tokens, n) float32.

    Source:
        arXiv 1606.08415, section 2.
    """
    inner = TANH_SLOPE * (x + TANH_CUBE * (x * x * x))
    bent = np.empty_like(x)
    for row, values in zip(bent, inner, strict=True):
        np.tanh(values, out=row)
    return np.float32(0.5) * x * (np.float32(1) + bent)


def relu2(x: F32) -> F32:
    """The square of what is above zero.

    Source:
        arXiv 2109.08668, section 3.
    """
    kept = np.maximum(x, np.float32(0))
    return kept * kept


ACTIVATIONS: Mapping[Activation, Callable[[F32], F32]] = {
    "silu": silu,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "relu2": relu2,
}
