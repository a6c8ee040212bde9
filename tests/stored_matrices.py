"""Weights, and matrices of them as packages store them: encoded by the NumPy codecs."""

from functools import lru_cache

import numpy as np

from mxconv.arrays import F32, U16
from mxconv.codecs.bsfp.histogram import PatternHistogram, row_shifts_of
from mxconv.codecs.bsfp.packing import encode_bsfp, escape_offsets
from mxconv.codecs.bsfp.table import SegmentTable
from mxconv.codecs.float16 import FORMATS, FloatFormat
from mxconv.codecs.mxfp4 import dequantize_mxfp4, quantize_mxfp4
from mxconv.codecs.vnni8 import TILE_ROWS, pack_nibbles, pack_scales, pad
from mxconv.kernels.encoders import fit_table
from mxconv.package.stored import StoredBsfp, StoredMxfp4

Shape = tuple[int, int]


def gaussian(shape: Shape, seed: int = 0, outliers: bool = False) -> F32:
    """Rows whose scales differ by octaves, float32; with outliers a few weights are far out, and escape."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(shape) * 2.0 ** rng.integers(-6, 3, (shape[0], 1))
    if outliers:
        values[rng.random(shape) < 0.02] *= 2.0**-9
        values[rng.random(shape) < 0.01] *= 2.0**5
    return values.astype(np.float32)


def stored_bsfp(
    patterns: U16,
    float_format: FloatFormat,
    row_shifts: bool | None = False,
    residual_bits: int | None = None,
    table: SegmentTable | None = None,
) -> StoredBsfp:
    """Patterns in the table that fits them, or in a given one; each is encoded once."""
    shape = patterns.shape[0], patterns.shape[1]
    return _stored_bsfp(patterns.tobytes(), shape, float_format.name, row_shifts, residual_bits, table)


@lru_cache(maxsize=1024)
def _stored_bsfp(
    content: bytes,
    shape: Shape,
    format_name: str,
    row_shifts: bool | None,
    residual_bits: int | None,
    table: SegmentTable | None,
) -> StoredBsfp:
    patterns, float_format = np.frombuffer(content, np.uint16).reshape(shape), FORMATS[format_name]
    if table is None:
        histogram = PatternHistogram(float_format)
        histogram.add(patterns)
        table = fit_table(histogram, residual_bits, row_shifts).table
    packed = encode_bsfp(patterns, table, row_shifts_of(patterns, float_format) if table.has_row_shifts else None)
    return StoredBsfp(shape, table, packed, escape_offsets(packed), 1.0)


def stored_mxfp4(values: F32) -> tuple[StoredMxfp4, F32]:
    """Values in MXFP4, and what they are there."""
    codes, scales = quantize_mxfp4(values)
    decoded = dequantize_mxfp4(codes, scales)[:, : values.shape[1]]
    packed = pack_nibbles(pad(codes, TILE_ROWS, 1)), pack_scales(pad(scales, TILE_ROWS, 1))
    return StoredMxfp4((values.shape[0], values.shape[1]), *packed), decoded
