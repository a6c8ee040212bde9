"""The draft inside BSFP: a nibble selects a level, a group of 128 shares a least-squares scale."""

import numpy as np

from mxconv.arrays import F32, F64, U8, U16
from mxconv.codecs.bsfp.table import SegmentTable
from mxconv.codecs.float16 import BF16
from mxconv.codecs.fold import fold
from mxconv.codecs.vnni8 import padded

GROUP = 128
COLUMN_MULTIPLE = 32  # columns are padded to whole blocks of int8 activations, not to whole groups
MAX_SCALE = float.fromhex("0x1.fep127")  # the largest finite BF16


def group_values(values: F32) -> F64:
    """(rows, columns) float32 -> (rows, num_groups, 128) float64, zero-padded; non-finite ones count as zero."""
    rows, columns = values.shape
    groups = np.zeros((rows, padded(columns, GROUP)), np.float64)
    groups[:, :columns] = np.where(np.isfinite(values), values, 0)
    return groups.reshape(rows, -1, GROUP)


def fit_group_scales(patterns: U16, nibbles: U8, table: SegmentTable) -> U16:
    """Least-squares scale of each group, sum(w * q) / sum(q * q): (rows, num_groups) uint16 BF16 patterns.

    Rounded from float32 to nearest even; 0 where all levels are 0.

    Source:
        SPEQ Eq. 4 (arXiv 2510.18525); the order of the sums is fixed by formats/bsfp.md.
    """
    weights = group_values(table.float_format.decode(patterns))
    levels = group_values(table.signed_levels[nibbles])
    return scales_of(fold(weights * levels), fold(levels * levels))


def scales_of(products: F64, squares: F64) -> U16:
    """BF16 patterns of products / squares, at most the largest finite one; 0 where squares is 0."""
    scales = np.where(squares > 0, products / np.where(squares > 0, squares, 1.0), 0.0)
    return BF16.encode(np.minimum(scales, MAX_SCALE).astype(np.float32))


def decode_draft(nibbles: U8, scales: U16, table: SegmentTable) -> F32:
    """Draft values, level times group scale, as (rows, columns) float32; infinite where that is beyond float32."""
    columns = nibbles.shape[1]
    per_column = np.repeat(BF16.decode(scales), GROUP, axis=1)[:, :columns]
    with np.errstate(over="ignore"):
        return table.signed_levels[nibbles] * per_column
