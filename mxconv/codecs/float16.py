"""The two 16-bit float formats, as bit patterns.

A weight is never converted before it is encoded: codecs read its 16 bits. This file names the fields of
those bits and converts between patterns (`uint16`) and values (`float32`).
"""

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from mxconv.arrays import F32, U16
from mxconv.errors import CodecError

MAGNITUDE_MASK = 0x7FFF  # exponent and mantissa: 15 bits, and as an integer they grow with the value
SIGN_MASK = 0x8000


@dataclass(frozen=True)
class FloatFormat:
    """A 16-bit float: one sign bit, then the exponent, then the mantissa in the lowest bits."""

    name: str  # as safetensors writes it
    exponent_bits: int
    mantissa_bits: int
    numpy_dtype: np.dtype[np.generic]

    @property
    def exponent_bias(self) -> int:
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def patterns_per_octave(self) -> int:
        """How many bit patterns lie between a value and twice that value."""
        return 1 << self.mantissa_bits

    @property
    def infinity(self) -> int:
        """The magnitude pattern of infinity; larger ones are NaNs."""
        return ((1 << self.exponent_bits) - 1) << self.mantissa_bits

    def decode(self, patterns: U16) -> F32:
        """Values of bit patterns: exact, subnormals, infinities and NaNs included."""
        if self.exponent_bits == 5:  # NumPy converts halves one by one; a look-up is three times as fast
            return _FP16_VALUES.take(patterns, mode="wrap")
        return patterns.view(self.numpy_dtype).astype(np.float32)

    def encode(self, values: F32) -> U16:
        """Bit patterns: rounded to nearest, ties to even; beyond the largest finite value to infinity."""
        with np.errstate(over="ignore", invalid="ignore"):
            return values.astype(self.numpy_dtype).view(np.uint16)


with np.errstate(invalid="ignore"):  # aarch64 says so of NaNs that signal
    _FP16_VALUES: F32 = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)  # by pattern
BF16 = FloatFormat("BF16", 8, 7, np.dtype(ml_dtypes.bfloat16))
FP16 = FloatFormat("F16", 5, 10, np.dtype(np.float16))
FORMATS = {"BF16": BF16, "F16": FP16}


def float_format(name: str) -> FloatFormat:
    """The format that safetensors calls `name` ("BF16" or "F16").

    Raises:
        CodecError: it is no 16-bit float.
    """
    if name not in FORMATS:
        raise CodecError(f"dtype {name}: not a 16-bit float; BF16 or F16 is required.")
    return FORMATS[name]
