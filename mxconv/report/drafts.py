"""What each 4-bit draft of a tensor costs and how near it comes: sums that add up over slices and over tensors."""

from dataclasses import dataclass, fields
from math import log10

import numpy as np

from mxconv.arrays import F32, F64, U16
from mxconv.codecs.bsfp.fit import FittedTable
from mxconv.codecs.bsfp.table import SegmentTable
from mxconv.codecs.float16 import FloatFormat
from mxconv.kernels.encoders import (
    decode_bsfp_draft,
    decode_mxfp4,
    encode_bsfp,
    encode_mxfp4,
    row_shifts_of,
)
from mxconv.package.stored import bsfp_arrays


@dataclass(frozen=True)
class DraftSums:
    """Sums over weights. An error is a sum of squared differences from the 16-bit weights, in float64."""

    num_weights: int = 0
    signal: float = 0.0  # sum of squared weights
    bsfp_error: float = 0.0  # fitted table
    bsfp_paper_error: float = 0.0
    mxfp4_error: float = 0.0  # OCP scale rule
    num_bsfp_bytes: int = 0  # as stored: nibbles, residuals, scales, shifts, escapes, padding
    num_bsfp_paper_bytes: int = 0
    num_bsfp_escapes: int = 0

    def __add__(self, other: "DraftSums") -> "DraftSums":
        return DraftSums(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})

    @property
    def bsfp_bits_per_weight(self) -> float:
        return 8 * self.num_bsfp_bytes / self.num_weights

    @property
    def bsfp_paper_bits_per_weight(self) -> float:
        return 8 * self.num_bsfp_paper_bytes / self.num_weights


@dataclass(frozen=True)
class StoredSums:
    """The same of what a package holds."""

    num_weights: int = 0
    signal: float = 0.0
    error: float = 0.0
    num_bytes: int = 0

    def __add__(self, other: "StoredSums") -> "StoredSums":
        return StoredSums(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.num_bytes / self.num_weights


def decibels(signal: float, error: float) -> float | None:
    """Signal over squared error; None where one of them is 0: nothing to measure, or nothing lost."""
    return 10 * log10(signal / error) if signal > 0 and error > 0 else None


def squared_error(weights: F64, draft: F32) -> float:
    difference = weights - draft
    np.square(difference, out=difference)
    return float(difference.sum())


def draft_sums(patterns: U16, fitted: SegmentTable, paper: SegmentTable) -> DraftSums:
    """Encode a slice of rows three ways and measure; bytes and escapes stay 0, they belong to the whole tensor.

    Args:
        patterns: (rows, columns) uint16, finite.
        fitted: the tensor's fitted table.
        paper: the paper's table of the same format.
    """
    float_format = fitted.float_format
    weights = float_format.decode(patterns).astype(np.float64)
    return DraftSums(
        num_weights=patterns.size,
        signal=float(np.square(weights).sum()),
        bsfp_error=squared_error(weights, _bsfp_draft(patterns, fitted)),
        bsfp_paper_error=squared_error(weights, _bsfp_draft(patterns, paper)),
        mxfp4_error=squared_error(weights, _mxfp4_draft(patterns, float_format)),
    )


def storage_sums(shape: tuple[int, int], fitted: FittedTable, paper: SegmentTable, num_paper_escapes: int) -> DraftSums:
    """The bytes that BSFP stores of a matrix, under both tables."""

    def num_bytes(table: SegmentTable, num_escapes: int) -> int:
        arrays = bsfp_arrays("matrix", shape, table.residual_bits, table.has_row_shifts, num_escapes)
        return sum(array.num_bytes for array in arrays)

    return DraftSums(
        num_bsfp_bytes=num_bytes(fitted.table, fitted.num_escapes),
        num_bsfp_paper_bytes=num_bytes(paper, num_paper_escapes),
        num_bsfp_escapes=fitted.num_escapes,
    )


def _bsfp_draft(patterns: U16, table: SegmentTable) -> F32:
    shifts = row_shifts_of(patterns, table.float_format) if table.has_row_shifts else None
    return decode_bsfp_draft(encode_bsfp(patterns, table, shifts), table, (patterns.shape[0], patterns.shape[1]))


def _mxfp4_draft(patterns: U16, float_format: FloatFormat) -> F32:
    codes, scales = encode_mxfp4(patterns, float_format)
    return decode_mxfp4(codes, scales, (patterns.shape[0], patterns.shape[1]))
