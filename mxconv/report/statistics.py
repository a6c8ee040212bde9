"""The figures of one tensor, or of several added up, and the JSON object that they make."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any, TypeVar

import numpy as np

from mxconv.arrays import I64
from mxconv.codecs.bsfp.fit import FittedTable
from mxconv.codecs.bsfp.histogram import NUM_PATTERNS, PatternHistogram
from mxconv.codecs.bsfp.speq import paper_table
from mxconv.codecs.float16 import MAGNITUDE_MASK, FloatFormat
from mxconv.conversion.survey import num_escapes
from mxconv.kernels.encoders import add_to_histogram, fit_table
from mxconv.report.drafts import DraftSums, StoredSums, decibels, draft_sums, squared_error, storage_sums
from mxconv.report.exponents import ExponentCounts
from mxconv.report.weights import WeightTensor

NUM_PASSES = 2  # the histogram, then the drafts that follow from it
Summable = TypeVar("Summable", ExponentCounts, DraftSums, StoredSums)


@dataclass(frozen=True)
class Statistics:
    """What was found in a tensor, a layer, a kind of tensor, or everything."""

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
    """Read a tensor: once for its exponents, and a matrix again for its drafts.

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
    """Add up. Bits and decibels count the tensors that are quantized; where none is, the matrices that are kept."""
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
