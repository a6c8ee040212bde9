"""Activations and gates, element by element; a row's bits are its own.

An `exp` or a `tanh` takes one row at a time: a vectorized one may treat the ends of an array differently.
"""

from collections.abc import Callable, Mapping

import numpy as np

from mxconv.arch.elements import Activation
from mxconv.arrays import F32
from mxconv.kernels.rowwise import silu

TANH_SLOPE = np.float32(np.sqrt(2 / np.pi))
TANH_CUBE = np.float32(0.044715)


def gelu(x: F32) -> F32:
    """x times the normal distribution's mass below x, for (num_tokens, n) float32."""
    result = np.empty_like(x)
    for row, values in zip(result, x, strict=True):
        row[...] = exact_gelu(values)
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


# erf(x) = 1 - (a1 t + ... + a5 t^5) exp(-x^2), t = 1 / (1 + p x), x >= 0, within 1.5e-7
P = 0.3275911
COEFFICIENTS = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)


def exact_gelu(x: F32) -> F32:
    """x times the normal distribution's mass below x, within 4e-7 times its magnitude; any shape.

    Source:
        arXiv 1606.08415, section 2, exact form; erf by Abramowitz and Stegun, Handbook of Mathematical Functions,
        formula 7.1.26.
    """
    wide = x.astype(np.float64)
    scaled = np.abs(wide) * np.sqrt(0.5)
    t = 1 / (1 + P * scaled)
    polynomial = np.zeros_like(t)
    for coefficient in COEFFICIENTS:
        polynomial = (polynomial + coefficient) * t
    with np.errstate(under="ignore"):
        tail = 0.5 * polynomial * np.exp(-scaled * scaled)  # of the distribution, beyond |x|
    result: F32 = (wide * np.where(wide < 0, tail, 1 - tail)).astype(np.float32)
    return result


LINEAR_FROM = np.float32(20)  # softplus(x) is x in float32


def row_sigmoid(row: F32) -> F32:
    """1 / (1 + exp(-x))."""
    with np.errstate(over="ignore"):  # exp(-x) is infinite from x = -89 on, and the result correctly 0
        return np.float32(1) / (np.float32(1) + np.exp(-row))


def softplus(row: F32) -> F32:
    """log(1 + exp(x))."""
    return np.where(row > LINEAR_FROM, row, np.log1p(np.exp(np.minimum(row, LINEAR_FROM))))


ACTIVATIONS: Mapping[Activation, Callable[[F32], F32]] = {
    "silu": silu,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "relu2": relu2,
}
