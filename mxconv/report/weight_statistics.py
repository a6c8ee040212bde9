"""The figures of one tensor or of several: exponents, and the size and error of each 4-bit draft."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from math import log10
from operator import add
from typing import Any, TypeVar

import numpy as np

from mxconv.arrays import F32, F64, I64, U16
from mxconv.codecs.bsfp.fit import FittedTable
from mxconv.codecs.bsfp.histogram import NUM_PATTERNS, PatternHistogram
from mxconv.codecs.bsfp.speq import paper_table
from mxconv.codecs.bsfp.table import SegmentTable
from mxconv.codecs.float16 import MAGNITUDE_MASK, FloatFormat
from mxconv.conversion.survey import num_escapes
from mxconv.kernels.encoders import (
    add_to_histogram,
    cast_bsfp,
    decode_bsfp_draft,
    decode_mxfp4,
    encode_mxfp4,
    fit_table,
    row_shifts_of,
)
from mxconv.package.stored import bsfp_arrays
from mxconv.report.exponents import ExponentCounts
from mxconv.report.open_weights import WeightTensor

NUM_PASSES = 2  # the histogram, then the drafts that follow from it


@dataclass(frozen=True)
class DraftSums:
    """Sums over the weights of tensors, for each 4-bit draft.

    An error is a sum of squared differences from the 16-bit weights, in float64.
    """

    num_weights: int = 0
    signal: float = 0.0  # sum of squared weights
    bsfp_error: float = 0.0  # fitted table
    bsfp_paper_error: float = 0.0
    mxfp4_error: float = 0.0  # OCP scale rule
    num_bsfp_bytes: int = 0  # as stored: nibbles, residuals, scales, shifts, escapes, padding
    num_bsfp_paper_bytes: int = 0
    num_bsfp_escapes: int = 0

    def __add__(self, other: "DraftSums") -> "DraftSums":
        return DraftSums(*map(add, vars(self).values(), vars(other).values()))

    @property
    def bsfp_bits_per_weight(self) -> float:
        return 8 * self.num_bsfp_bytes / self.num_weights

    @property
    def bsfp_paper_bits_per_weight(self) -> float:
        return 8 * self.num_bsfp_paper_bytes / self.num_weights


@dataclass(frozen=True)
class StoredSums:
    """Sums over the weights of tensors for the draft that a package stores."""

    num_weights: int = 0
    signal: float = 0.0
    error: float = 0.0
    num_bytes: int = 0

    def __add__(self, other: "StoredSums") -> "StoredSums":
        return StoredSums(*map(add, vars(self).values(), vars(other).values()))

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.num_bytes / self.num_weights


Summable = TypeVar("Summable", ExponentCounts, DraftSums, StoredSums)


@dataclass(frozen=True)
class Statistics:
    """The figures of a tensor, a layer, a kind of tensor, or all tensors."""

    name: str
    num_tensors: int
    num_weights: int
    num_quantized: int  # of the tensors
    dtype: str | None  # None: several
    shape: tuple[int, ...] | None  # of a tensor
    exponents: ExponentCounts | None = None  # None: no 16-bit floats, or both kinds of them
    drafts: DraftSums | None = None  # None: nothing that the codecs encode
    stored: StoredSums | None = None  # of a package
    reason: str | None = None  # why it is quantized or kept
    codec: str | None = None  # of a tensor in a package
    fitted: FittedTable | None = None  # of a tensor
    note: str | None = None

    @property
    def bsfp_draft_sqnr_db(self) -> float | None:
        return decibels(self.drafts.signal, self.drafts.bsfp_error) if self.drafts else None

    @property
    def bsfp_paper_draft_sqnr_db(self) -> float | None:
        return decibels(self.drafts.signal, self.drafts.bsfp_paper_error) if self.drafts else None

    @property
    def mxfp4_sqnr_db(self) -> float | None:
        return decibels(self.drafts.signal, self.drafts.mxfp4_error) if self.drafts else None

    @property
    def stored_draft_sqnr_db(self) -> float | None:
        return decibels(self.stored.signal, self.stored.error) if self.stored else None

    def to_json(self) -> dict[str, Any]:
        """A JSON object; what does not apply is null."""
        exponents, drafts, stored, fitted = self.exponents, self.drafts, self.stored, self.fitted
        counts = None
        if exponents is not None:
            counts = {str(number): int(count) for number, count in enumerate(exponents.fields) if count}
        return {
            "name": self.name,
            "dtype": self.dtype,
            "shape": None if self.shape is None else list(self.shape),
            "num_tensors": self.num_tensors,
            "num_weights": self.num_weights,
            "num_quantized": self.num_quantized,
            "codec": self.codec,
            "reason": self.reason,
            "note": self.note,
            "exponent_histogram": counts,
            "max_abs": exponents.max_abs if exponents else None,
            "num_zero": exponents.num_zero if exponents else None,
            "num_nonfinite": exponents.num_nonfinite if exponents else None,
            "window": list(exponents.window) if exponents and exponents.window else None,
            "num_outside_window": exponents.num_outside_window if exponents else None,
            "num_draft_weights": drafts.num_weights if drafts else None,
            "bsfp_bits_per_weight": drafts.bsfp_bits_per_weight if drafts else None,
            "bsfp_paper_bits_per_weight": drafts.bsfp_paper_bits_per_weight if drafts else None,
            "bsfp_num_escapes": drafts.num_bsfp_escapes if drafts else None,
            "bsfp_residual_bits": fitted.table.residual_bits if fitted else None,
            "bsfp_row_shifts": fitted.table.has_row_shifts if fitted else None,
            "bsfp_draft_sqnr_db": self.bsfp_draft_sqnr_db,
            "bsfp_paper_draft_sqnr_db": self.bsfp_paper_draft_sqnr_db,
            "mxfp4_sqnr_db": self.mxfp4_sqnr_db,
            "stored_bits_per_weight": stored.bits_per_weight if stored else None,
            "stored_draft_sqnr_db": self.stored_draft_sqnr_db,
        }


def tensor_statistics(tensor: WeightTensor, advance: Callable[[int], None] = lambda _: None) -> Statistics:
    """Read a tensor once for its exponents, and a matrix a second time for its drafts.

    Args:
        tensor: what to read.
        advance: called with the 16-bit bytes of each slice of each pass; in all `NUM_PASSES` times those of the tensor.
    """
    exponents = drafts = stored = fitted = None
    note, num_bytes, is_quantized = tensor.note, 2 * tensor.num_weights, tensor.is_quantized
    if tensor.float_format is None:
        advance(NUM_PASSES * num_bytes)
    elif not tensor.is_matrix:
        exponents = ExponentCounts.from_patterns(tensor.float_format, _pattern_counts(tensor))
        advance(NUM_PASSES * num_bytes)
    else:
        histogram = _histogram(tensor, tensor.float_format, advance)
        exponents = ExponentCounts.from_patterns(tensor.float_format, histogram.counts)
        if exponents.num_nonfinite:
            remedy = "" if tensor.codec else ": quantize needs --on-nonfinite keep"
            note, is_quantized = f"non-finite weights{remedy}", False
            advance(num_bytes)
        else:
            fitted = fit_table(histogram)
            drafts, stored = _drafts(tensor, histogram, fitted, advance)
    return Statistics(
        name=tensor.name,
        num_tensors=1,
        num_weights=tensor.num_weights,
        num_quantized=int(is_quantized),
        dtype=tensor.dtype,
        shape=tensor.shape,
        exponents=exponents,
        drafts=drafts,
        stored=stored,
        reason=tensor.reason,
        codec=tensor.codec,
        fitted=fitted,
        note=note,
    )


def merge(name: str, parts: Sequence[Statistics]) -> Statistics:
    """Add up figures. Bits and decibels count the quantized tensors, or all matrices where none is quantized."""
    dtypes = sorted({part.dtype for part in parts if part.dtype is not None})
    formats = {part.exponents.float_format.name for part in parts if part.exponents is not None}
    measured = [part for part in parts if part.drafts is not None]
    counted = [part for part in measured if part.num_quantized] or measured
    is_mixed = len(formats) > 1
    return Statistics(
        name=name,
        num_tensors=sum(part.num_tensors for part in parts),
        num_weights=sum(part.num_weights for part in parts),
        num_quantized=sum(part.num_quantized for part in parts),
        dtype=dtypes[0] if len(dtypes) == 1 else None,
        shape=None,
        exponents=None if is_mixed else _sum([part.exponents for part in parts]),
        drafts=_sum([part.drafts for part in counted]),
        stored=_sum([part.stored for part in parts]),
        note="BF16 and F16 tensors: their exponent fields differ; choose one kind with --tensor." if is_mixed else None,
    )


def _sum(parts: Sequence[Summable | None]) -> Summable | None:
    present = [part for part in parts if part is not None]
    return reduce(add, present) if present else None


def _pattern_counts(tensor: WeightTensor) -> I64:
    counts = np.zeros(NUM_PATTERNS, np.int64)
    for _, _, patterns in tensor.slices():
        counts += np.bincount((patterns & MAGNITUDE_MASK).ravel(), minlength=NUM_PATTERNS)
    return counts


def _histogram(tensor: WeightTensor, float_format: FloatFormat, advance: Callable[[int], None]) -> PatternHistogram:
    histogram = PatternHistogram(float_format)
    for _, _, patterns in tensor.slices():
        add_to_histogram(histogram, patterns)
        advance(patterns.nbytes)
    return histogram


def _drafts(
    tensor: WeightTensor, histogram: PatternHistogram, fitted: FittedTable, advance: Callable[[int], None]
) -> tuple[DraftSums, StoredSums | None]:
    float_format = histogram.float_format
    paper = paper_table(float_format)
    rows, columns = tensor.shape
    sums = storage_sums((rows, columns), fitted, paper, num_escapes(histogram, paper))
    stored_error = 0.0
    for start, stop, patterns in tensor.slices():
        sums += draft_sums(patterns, fitted.table, paper)
        if tensor.draft_rows is not None:
            weights = float_format.decode(patterns).astype(np.float64)
            stored_error += squared_error(weights, tensor.draft_rows(start, stop))
        advance(patterns.nbytes)
    if tensor.draft_rows is None:
        return sums, None
    return sums, StoredSums(sums.num_weights, sums.signal, stored_error, tensor.num_stored_bytes)


def decibels(signal: float, error: float) -> float | None:
    """The ratio of signal to squared error in decibels; None where one of them is 0."""
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
    """The bytes that BSFP stores for a matrix, with the fitted and the paper's table."""

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
    return decode_bsfp_draft(cast_bsfp(patterns, table, shifts), table, (patterns.shape[0], patterns.shape[1]))


def _mxfp4_draft(patterns: U16, float_format: FloatFormat) -> F32:
    codes, scales = encode_mxfp4(patterns, float_format)
    return decode_mxfp4(codes, scales, (patterns.shape[0], patterns.shape[1]))
