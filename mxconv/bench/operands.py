"""Matrices to multiply with: what each kernel reads, byte for byte, and the weights that those bytes mean.

Encoding 8192 x 8192 weights with NumPy takes minutes, and a kernel's time does not depend on their values. So 1024 rows
are encoded, and their bytes are repeated until the matrix is full; escape offsets go on counting.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxconv.arrays import F32, F64, U16
from mxconv.codecs.bsfp.draft import GROUP
from mxconv.codecs.bsfp.fit import fit_table
from mxconv.codecs.bsfp.histogram import PatternHistogram, row_shifts_of
from mxconv.codecs.bsfp.packing import PackedBsfp, decode_bsfp, decode_bsfp_draft, encode_bsfp
from mxconv.codecs.bsfp.table import SegmentTable
from mxconv.codecs.e2m1 import DOUBLED
from mxconv.codecs.float16 import BF16, FP16, FloatFormat
from mxconv.codecs.mxfp4 import dequantize_mxfp4, quantize_mxfp4
from mxconv.codecs.vnni8 import TILE_ROWS, pack_nibbles, pack_scales, pad, padded, unpack_nibbles, unpack_scales
from mxconv.kernels import _native

KERNELS = ("bf16", "fp16", "bsfp-full", "bsfp-draft", "mxfp4-int8", "mxfp4-fp32")
SLAB_ROWS = 1024
SIGMA = 0.02  # of the weights: what linear layers of language models have
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
    rows, columns = min(shape[0], SLAB_ROWS), shape[1]
    values = np.random.default_rng(seed).standard_normal((rows, columns), np.float32) * np.float32(SIGMA)
    if kernel in ("bf16", "fp16"):
        return _dense(kernel, shape, values, BF16 if kernel == "bf16" else FP16)
    if kernel.startswith("mxfp4"):
        return _mxfp4(kernel, shape, values)
    patterns = BF16.encode(values)
    histogram = PatternHistogram(BF16)
    histogram.add(patterns)
    table = fit_table(histogram).table
    packed = encode_bsfp(patterns, table, row_shifts_of(patterns, BF16) if table.has_row_shifts else None)
    if kernel == "bsfp-full":
        return _bsfp_full(shape, patterns, packed, table)
    return _bsfp_draft(shape, patterns.shape, packed, table)


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
    codes, scales = quantize_mxfp4(values)
    packed, packed_scales = pack_nibbles(pad(codes, TILE_ROWS, 1)), pack_scales(pad(scales, TILE_ROWS, 1))
    slab = dequantize_mxfp4(unpack_nibbles(packed), unpack_scales(packed_scales))[: len(values), : shape[1]]
    integers = kernel == "mxfp4-int8"

    def bind(arrays: Arrays) -> _native.Matrix:
        if integers:
            return _native.four_bit_int8(*shape, arrays["codes"], DOUBLED, arrays["scales"], 0.5)
        return _native.four_bit_float(*shape, arrays["codes"], DOUBLED.astype(np.float32), arrays["scales"], 0.5)

    arrays = {"codes": _repeat(packed, shape[0]), "scales": _repeat(packed_scales, shape[0])}
    return Operand(kernel, "int8" if integers else "float", shape, arrays, bind, slab)


def _bsfp_draft(
    shape: tuple[int, int], slab_shape: tuple[int, ...], packed: PackedBsfp, table: SegmentTable
) -> Operand:
    levels = table.signed_levels.astype(np.int8)
    slab = decode_bsfp_draft(packed, table, (slab_shape[0], slab_shape[1]))
    assert table.has_int8_levels and packed.scales.shape[1] == padded(shape[1], GROUP) // GROUP

    def bind(arrays: Arrays) -> _native.Matrix:
        return _native.four_bit_int8(*shape, arrays["codes"], levels, arrays["scales"], 1.0)

    arrays = {"codes": _repeat(packed.codes, shape[0]), "scales": _repeat(packed.scales, shape[0])}
    return Operand("bsfp-draft", "int8", shape, arrays, bind, slab)


def _bsfp_full(shape: tuple[int, int], patterns: U16, packed: PackedBsfp, table: SegmentTable) -> Operand:
    num_rows = padded(shape[0], TILE_ROWS)
    per_row_tile = packed.escape_counts.sum(axis=1, dtype=np.int64)
    starts = table.row_starts(len(per_row_tile) * TILE_ROWS, packed.row_shifts).astype(np.uint16)
    repeated = _repeat(per_row_tile, shape[0])
    num_escapes = int(repeated.sum())
    arrays = {
        "codes": _repeat(packed.codes, shape[0]),
        "residual_low": _repeat(packed.residual_low, shape[0]),
        "residual_high": _repeat(packed.residual_high, shape[0]),
        "starts": starts[np.arange(num_rows) % len(starts)],
        "escape_counts": _repeat(packed.escape_counts, shape[0]),
        "escape_offsets": np.concatenate([[0], np.cumsum(repeated)]).astype(np.int64),
        "escape_positions": np.resize(packed.escape_positions, num_escapes),  # whole slabs follow one another,
        "escape_high": np.resize(packed.escape_high, num_escapes),  # so their lists do
    }

    def bind(arrays: Arrays) -> _native.Matrix:
        return _native.bsfp(*shape, "BF16", *arrays.values())

    slab = decode_bsfp(packed, table, (patterns.shape[0], patterns.shape[1]))
    return Operand("bsfp-full", "bf16", shape, arrays, bind, BF16.decode(slab), patterns, BF16)


def _repeat(tiles: NDArray[Any], num_rows: int) -> NDArray[Any]:
    """The row tiles of a slab (first axis), again and again, for `num_rows` rows."""
    repeated: NDArray[Any] = tiles[np.arange(padded(num_rows, TILE_ROWS) // TILE_ROWS) % len(tiles)]
    return repeated


def _on_pages(array: NDArray[Any]) -> NDArray[Any]:
    memory = np.empty(array.nbytes + PAGE_BYTES, np.uint8)
    begin = -memory.ctypes.data % PAGE_BYTES
    copied: NDArray[Any] = memory[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    copied[...] = array
    return copied
