"""What large matrices to measure with are made of: some encoded rows, whose bytes are repeated.

Encoding 8192 x 8192 weights with NumPy takes minutes, and a kernel's time does not depend on their values. So 1024 rows
are encoded, and their bytes are repeated until the matrix is full; lists of escapes go on.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxconv.arrays import F32, U8, U16
from mxconv.codecs.bsfp.fit import fit_table
from mxconv.codecs.bsfp.histogram import PatternHistogram, row_shifts_of
from mxconv.codecs.bsfp.packing import PackedBsfp, encode_bsfp
from mxconv.codecs.bsfp.table import SegmentTable
from mxconv.codecs.float16 import BF16
from mxconv.codecs.mxfp4 import dequantize_mxfp4, quantize_mxfp4
from mxconv.codecs.mxint8 import dequantize_mxint8, quantize_mxint8
from mxconv.codecs.vnni8 import (
    TILE_ROWS,
    pack_nibbles,
    pack_quads,
    pack_scales,
    pad,
    padded,
    unpack_nibbles,
    unpack_scales,
)

SLAB_ROWS = 1024
SIGMA = 0.02  # of the weights: what linear layers of language models have


def gaussian_slab(shape: tuple[int, int], seed: int = 0) -> F32:
    """(slab rows, in_features) Gaussian weights, the same for the same shape and seed."""
    size = (min(shape[0], SLAB_ROWS), shape[1])
    return np.random.default_rng(seed).standard_normal(size, np.float32) * np.float32(SIGMA)


@dataclass(frozen=True)
class MxSlab:
    """Rows in MXFP4 or MXINT8."""

    codes: U8  # (T, C, 64) as stored; of MXINT8 (T, 2 C, 64) elements
    scales: U8  # (T, blocks, 16)
    weights: F32  # (rows, in_features) that they mean


def mxfp4_slab(values: F32) -> MxSlab:
    """Encode (rows, in_features) weights in MXFP4."""
    codes, scales = quantize_mxfp4(values)
    packed, packed_scales = pack_nibbles(pad(codes, TILE_ROWS, 1)), pack_scales(pad(scales, TILE_ROWS, 1))
    weights = dequantize_mxfp4(unpack_nibbles(packed), unpack_scales(packed_scales))[: len(values), : values.shape[1]]
    return MxSlab(packed, packed_scales, weights)


def mxint8_slab(values: F32) -> MxSlab:
    """Encode (rows, in_features) weights in MXINT8."""
    elements, scales = quantize_mxint8(values)
    packed = pack_quads(pad(elements.view(np.uint8), TILE_ROWS, 1))
    weights = dequantize_mxint8(elements, scales)[:, : values.shape[1]]
    return MxSlab(packed, pack_scales(pad(scales, TILE_ROWS, 1)), weights)


@dataclass(frozen=True)
class BsfpSlab:
    """Rows of BF16 in BSFP."""

    patterns: U16  # (rows, in_features) the weights
    packed: PackedBsfp
    table: SegmentTable


def bsfp_slab(values: F32) -> BsfpSlab:
    """Encode (rows, in_features) weights, rounded to BF16, in the table that fits them."""
    patterns = BF16.encode(values)
    histogram = PatternHistogram(BF16)
    histogram.add(patterns)
    table = fit_table(histogram).table
    packed = encode_bsfp(patterns, table, row_shifts_of(patterns, BF16) if table.has_row_shifts else None)
    return BsfpSlab(patterns, packed, table)


def repeat_bsfp(packed: PackedBsfp, num_rows: int) -> PackedBsfp:
    """A matrix of `num_rows` rows: those of the slab, again and again."""
    counts = repeat(packed.escape_counts, num_rows)
    num_escapes = int(counts.sum(dtype=np.int64))  # whole slabs follow one another, so their lists do
    shifts = packed.row_shifts
    return PackedBsfp(
        codes=repeat(packed.codes, num_rows),
        residual_low=repeat(packed.residual_low, num_rows),
        residual_high=repeat(packed.residual_high, num_rows),
        scales=repeat(packed.scales, num_rows),
        row_shifts=None if shifts is None else shifts[np.arange(padded(num_rows, TILE_ROWS)) % len(shifts)],
        escape_counts=counts,
        escape_positions=np.resize(packed.escape_positions, num_escapes),
        escape_high=np.resize(packed.escape_high, num_escapes),
    )


def repeat(tiles: NDArray[Any], num_rows: int) -> NDArray[Any]:
    """The row tiles of a slab (first axis), again and again, for `num_rows` rows."""
    repeated: NDArray[Any] = tiles[np.arange(padded(num_rows, TILE_ROWS) // TILE_ROWS) % len(tiles)]
    return repeated
