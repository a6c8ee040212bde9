"""The element types of a safetensors file, and the NumPy types that their bytes are read as."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class TensorDtype:
    """One element type.

    `array_dtype` is what `SourceTensor.array` returns. 16-bit floats travel as their bit patterns and 8-bit
    floats as bytes. Elements of fewer than 8 bits stay packed: their arrays hold bytes, not elements.
    """

    name: str
    num_bits: int
    array_dtype: np.dtype[np.generic]

    @property
    def is_packed(self) -> bool:
        return self.num_bits < 8


def _dtype(name: str, num_bits: int, array_dtype: str) -> tuple[str, TensorDtype]:
    return name, TensorDtype(name, num_bits, np.dtype(array_dtype))


# Source: the `Dtype` enumeration of the safetensors library, version 0.8. Little-endian, as the format is.
DTYPES: dict[str, TensorDtype] = dict(
    [
        _dtype("BF16", 16, "<u2"),
        _dtype("F16", 16, "<u2"),
        _dtype("F32", 32, "<f4"),
        _dtype("F64", 64, "<f8"),
        _dtype("C64", 64, "<c8"),
        _dtype("BOOL", 8, "?"),
        _dtype("U8", 8, "u1"),
        _dtype("I8", 8, "i1"),
        _dtype("U16", 16, "<u2"),
        _dtype("I16", 16, "<i2"),
        _dtype("U32", 32, "<u4"),
        _dtype("I32", 32, "<i4"),
        _dtype("U64", 64, "<u8"),
        _dtype("I64", 64, "<i8"),
        _dtype("F8_E4M3", 8, "u1"),
        _dtype("F8_E5M2", 8, "u1"),
        _dtype("F8_E8M0", 8, "u1"),
        _dtype("F8_E4M3FNUZ", 8, "u1"),
        _dtype("F8_E5M2FNUZ", 8, "u1"),
        _dtype("F6_E2M3", 6, "u1"),
        _dtype("F6_E3M2", 6, "u1"),
        _dtype("F4", 4, "u1"),
    ]
)
