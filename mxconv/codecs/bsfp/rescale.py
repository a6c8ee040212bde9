"""SPEQ's outlier policy: scale a tensor so that its largest weight fits the window. That rounds: it loses bits."""

import numpy as np

from mxconv.arrays import U16
from mxconv.codecs.float16 import FloatFormat

LIMIT = 2.0
TARGET = 1.999


def rescale_factor(max_abs: float) -> float:
    """The factor of SPEQ Algorithm 1 as a float32 value: 1.999 / max|w| where max|w| > 2, else 1."""
    return float(np.float32(TARGET / max_abs)) if max_abs > LIMIT else 1.0


def rescale(patterns: U16, factor: float, float_format: FloatFormat) -> U16:
    """Weights times factor, in float32, rounded to the format: nearest, ties to even. Shape unchanged."""
    if factor == 1.0:
        return patterns
    return float_format.encode(float_format.decode(patterns) * np.float32(factor))


def undo_rescale(patterns: U16, factor: float, float_format: FloatFormat) -> U16:
    """Weights over factor, in float32, rounded to the format: the reconstruction, a rounding away from the source."""
    if factor == 1.0:
        return patterns
    return float_format.encode(float_format.decode(patterns) / np.float32(factor))
