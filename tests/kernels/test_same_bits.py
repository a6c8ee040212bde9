"""Integers and encodings are the same on every processor: digests of what all kernels give, on x86-64 and on aarch64.

A kernel that differs from NumPy fails other tests; one that differs with NumPy, since this machine's arithmetic does,
fails here. Inputs are made of integers alone. `python tests/kernels/test_same_bits.py` prints the digests.
"""

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mxconv.codecs.bsfp.fit import fit_table
from mxconv.codecs.bsfp.histogram import PatternHistogram
from mxconv.codecs.bsfp.speq import paper_table
from mxconv.codecs.e2m1 import DOUBLED
from mxconv.codecs.float16 import BF16, FP16, FloatFormat
from mxconv.kernels import encoders
from mxconv.kernels.engine import native_names

_native = pytest.importorskip("mxconv.kernels._native", reason="the extension is not built on this machine")

ROWS, COLUMNS = 80, 352

DIGESTS = {
    "int8 products": "b1b1e8cc5a4b5eb9161f6a13885aaf25",
    "mxint8 products": "9dfc7b625e6f979fd45eba412e7ad163",
    "mxfp4 BF16": "1a3933169589b8b28e0848d2f7ff2894",
    "mxfp4 F16": "7248dae6baff07506ecdec1b109aa68b",
    "bsfp BF16": "5d8d204bfd9b8d3f241a4b29232e18bb",
    "bsfp F16": "232bf45de2bf811aac63eb9ced20cfe7",
    "fitted table BF16": "226bd98839804203a7a31ffffbc2ae34",
}


def integers(count: int, seed: int) -> np.ndarray:
    """(count) uint32 by a multiplicative hash."""
    numbers = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed)
    numbers = (numbers ^ numbers >> np.uint64(29)) * np.uint64(0xBF58476D1CE4E5B9)
    return (numbers >> np.uint64(32)).astype(np.uint32)


def patterns(float_format: FloatFormat) -> np.ndarray:
    """(ROWS, COLUMNS) finite 16-bit patterns of both signs, most of them within eight octaves of a row's own."""
    numbers = integers(ROWS * COLUMNS, 1).reshape(ROWS, COLUMNS)
    octave = float_format.patterns_per_octave
    top = float_format.infinity - 1 - octave * (integers(ROWS, 2) % 6)[:, None]
    near = top - numbers % np.uint32(8 * octave)
    magnitudes = np.where(numbers >> 20 & 31, near, numbers % np.uint32(float_format.infinity))
    return (magnitudes | numbers >> 16 & 0x8000).astype(np.uint16)


def int8_products(kernel: str) -> list[np.ndarray]:
    """Results whose sums are exact: scales are powers of two near each other, and a token's largest number is 127."""
    codes = integers(ROWS * COLUMNS // 2, 3).astype(np.uint8).reshape(ROWS // 16, COLUMNS // 8, 64)
    scales = (127 + integers(ROWS * COLUMNS // 32, 4) % 4).astype(np.uint8).reshape(ROWS // 16, COLUMNS // 32, 16)
    return exact_products(kernel, _native.four_bit_int8(ROWS, COLUMNS, codes, DOUBLED, scales, 0.5))


def mxint8_products(kernel: str) -> list[np.ndarray]:
    elements = (integers(ROWS * COLUMNS, 6) % 255).astype(np.uint8) - np.uint8(127)
    scales = (127 + integers(ROWS * COLUMNS // 32, 7) % 4).astype(np.uint8).reshape(ROWS // 16, COLUMNS // 32, 16)
    return exact_products(kernel, _native.mxint8(ROWS, COLUMNS, elements.reshape(ROWS // 16, -1, 64), scales))


def exact_products(kernel: str, matrix: Any) -> list[np.ndarray]:
    """Of one to nine tokens."""
    x = (integers(9 * COLUMNS, 5) % 255).astype(np.float32).reshape(9, COLUMNS) - 127
    x[:, ::32] = 127
    found = []
    for width in range(1, 10):
        out = np.empty((width, ROWS), np.float32)
        matrix.multiply(_native.Engine(kernel, 1), x[:width], out)
        found.append(out)
    return found


def mxfp4(float_format: FloatFormat) -> list[np.ndarray]:
    return [
        array
        for rule in ("ocp", "even", "ceil", "ggml", "mse")
        for array in encoders.encode_mxfp4(patterns(float_format), float_format, rule)
    ]


def bsfp(float_format: FloatFormat) -> list[np.ndarray]:
    packed = encoders.encode_bsfp(patterns(float_format), paper_table(float_format))
    return [packed.codes, packed.residual_low, packed.residual_high, packed.scales, packed.escape_counts,
            packed.escape_positions, packed.escape_high]  # fmt: skip


def fitted_table(float_format: FloatFormat) -> list[np.ndarray]:
    histogram = PatternHistogram(float_format)
    histogram.add(patterns(float_format))
    table = fit_table(histogram, 8, True).table
    return [np.array(table.starts, np.int64), np.array(table.levels, np.float64)]


MAKERS: dict[str, Callable[[str], list[np.ndarray]]] = {
    "int8 products": int8_products,
    "mxint8 products": mxint8_products,
    "mxfp4 BF16": lambda _: mxfp4(BF16),
    "mxfp4 F16": lambda _: mxfp4(FP16),
    "bsfp BF16": lambda _: bsfp(BF16),
    "bsfp F16": lambda _: bsfp(FP16),
    "fitted table BF16": lambda _: fitted_table(BF16),
}


def digest(arrays: list[np.ndarray]) -> str:
    together = hashlib.sha256()
    for array in arrays:
        together.update(f"{array.dtype.str} {array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    return together.hexdigest()[:32]


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("kernel", native_names())
def test_every_processor_gives_these_bits(kernel: str, name: str, monkeypatch: Any) -> None:
    monkeypatch.setenv("MXCONV_KERNEL", kernel)
    assert digest(MAKERS[name](kernel)) == DIGESTS[name]


if __name__ == "__main__":
    for name, make in MAKERS.items():
        print(f'    "{name}": "{digest(make(native_names()[0]))}",')
