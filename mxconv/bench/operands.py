"""Matrices to multiply with: what each kernel reads, byte for byte, and the weights that those bytes mean.

Some rows are encoded, and their bytes repeated: slabs.py.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxconv.arrays import F32, F64, U16
from mxconv.bench.slabs import BsfpSlab, bsfp_slab, gaussian_slab, mxfp4_slab, mxint8_slab, repeat, repeat_bsfp
from mxconv.codecs.bsfp.draft import GROUP
from mxconv.codecs.bsfp.packing import decode_bsfp, decode_bsfp_draft, escape_offsets
from mxconv.codecs.e2m1 import DOUBLED
from mxconv.codecs.float16 import BF16, FP16, FloatFormat
from mxconv.codecs.vnni8 import TILE_ROWS, padded
from mxconv.kernels import _native

KERNELS = ("bf16", "fp16", "bsfp-full", "bsfp-draft", "mxint8", "mxfp4-int8", "mxfp4-fp32")
PAGE_BYTES = 4096

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Operand:
    """A kernel's matrix.

    Args:
        kernel: one of `KERNELS`.
        form: of the activations that it multiplies: bf16 (rounded), float, or int8 (blocks of 32).
        shape: (out_features, in_features).
        arrays: all that one product reads, as stored.
        bind: a native matrix over such arrays.
        slab: (slab rows, in_features) the weights that the first rows mean, decoded by NumPy; row r of the matrix is
            row r modulo slab rows.
        patterns: the same of 16-bit weights; None for a draft.
        float_format: of the patterns.
    """

    kernel: str
    form: str
    shape: tuple[int, int]
    arrays: Arrays
    bind: Callable[[Arrays], _native.Matrix]
    slab: F32
    patterns: U16 | None = None
    float_format: FloatFormat | None = None

    @property
    def num_bytes(self) -> int:
        """What one product reads of the matrix."""
        return sum(array.nbytes for array in self.arrays.values())

    @property
    def bits_per_weight(self) -> float:
        return self.num_bytes * 8 / (self.shape[0] * self.shape[1])

    def copy(self) -> _native.Matrix:
        """A native matrix in memory of its own, each array on a page boundary as in a mapped file."""
        return self.bind({name: _on_pages(array) for name, array in self.arrays.items()})

    def weights(self, rows: NDArray[np.intp]) -> F64:
        """(len(rows), in_features) the weights of some rows."""
        return self.slab[rows % len(self.slab)].astype(np.float64)


def make_operand(kernel: str, shape: tuple[int, int], seed: int = 0) -> Operand:
    """Gaussian weights for one of `KERNELS`, the same for the same shape and seed."""
    values = gaussian_slab(shape, seed)
    if kernel in ("bf16", "fp16"):
        return _dense(kernel, shape, values, BF16 if kernel == "bf16" else FP16)
    if kernel.startswith("mxfp4"):
        return _mxfp4(kernel, shape, values)
    if kernel == "mxint8":
        return _mxint8(shape, values)
    slab = bsfp_slab(values)
    return _bsfp_full(shape, slab) if kernel == "bsfp-full" else _bsfp_draft(shape, slab)


def _dense(kernel: str, shape: tuple[int, int], values: F32, float_format: FloatFormat) -> Operand:
    patterns = float_format.encode(values)
    return Operand(
        kernel,
        "bf16" if float_format == BF16 else "float",
        shape,
        {"patterns": patterns[np.arange(shape[0]) % len(patterns)]},
        lambda arrays: _native.dense(arrays["patterns"], float_format.name),
        float_format.decode(patterns),
        patterns,
        float_format,
    )


def _mxfp4(kernel: str, shape: tuple[int, int], values: F32) -> Operand:
    slab = mxfp4_slab(values)
    integers = kernel == "mxfp4-int8"

    def bind(arrays: Arrays) -> _native.Matrix:
        if integers:
            return _native.four_bit_int8(*shape, arrays["codes"], DOUBLED, arrays["scales"], 0.5)
        return _native.four_bit_float(*shape, arrays["codes"], DOUBLED.astype(np.float32), arrays["scales"], 0.5)

    arrays = {"codes": repeat(slab.codes, shape[0]), "scales": repeat(slab.scales, shape[0])}
    return Operand(kernel, "int8" if integers else "float", shape, arrays, bind, slab.weights)


def _mxint8(shape: tuple[int, int], values: F32) -> Operand:
    slab = mxint8_slab(values)

    def bind(arrays: Arrays) -> _native.Matrix:
        return _native.mxint8(*shape, arrays["elements"], arrays["scales"])

    arrays = {"elements": repeat(slab.codes, shape[0]), "scales": repeat(slab.scales, shape[0])}
    return Operand("mxint8", "int8", shape, arrays, bind, slab.weights)


def _bsfp_draft(shape: tuple[int, int], slab: BsfpSlab) -> Operand:
    packed, table = slab.packed, slab.table
    levels = table.signed_levels.astype(np.int8)
    weights = decode_bsfp_draft(packed, table, (len(slab.patterns), shape[1]))
    assert table.has_int8_levels and packed.scales.shape[1] == padded(shape[1], GROUP) // GROUP

    def bind(arrays: Arrays) -> _native.Matrix:
        return _native.four_bit_int8(*shape, arrays["codes"], levels, arrays["scales"], 1.0)

    arrays = {"codes": repeat(packed.codes, shape[0]), "scales": repeat(packed.scales, shape[0])}
    return Operand("bsfp-draft", "int8", shape, arrays, bind, weights)


def _bsfp_full(shape: tuple[int, int], slab: BsfpSlab) -> Operand:
    packed = repeat_bsfp(slab.packed, shape[0])
    num_rows = padded(shape[0], TILE_ROWS)
    starts = slab.table.row_starts(len(slab.packed.codes) * TILE_ROWS, slab.packed.row_shifts).astype(np.uint16)
    arrays: Arrays = {
        "codes": packed.codes,
        "residual_low": packed.residual_low,
        "residual_high": packed.residual_high,
        "starts": starts[np.arange(num_rows) % len(starts)],
        "escape_counts": packed.escape_counts,
        "escape_offsets": escape_offsets(packed),
        "escape_positions": packed.escape_positions,
        "escape_high": packed.escape_high,
    }

    def bind(arrays: Arrays) -> _native.Matrix:
        return _native.bsfp(*shape, "BF16", *arrays.values())

    weights = decode_bsfp(slab.packed, slab.table, (len(slab.patterns), shape[1]))
    return Operand("bsfp-full", "bf16", shape, arrays, bind, BF16.decode(weights), slab.patterns, BF16)


def _on_pages(array: NDArray[Any]) -> NDArray[Any]:
    memory = np.empty(array.nbytes + PAGE_BYTES, np.uint8)
    begin = -memory.ctypes.data % PAGE_BYTES
    copied: NDArray[Any] = memory[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    copied[...] = array
    return copied
