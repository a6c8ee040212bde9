"""One reading pass over what will be quantized: non-finite weights, and for BSFP the histogram and its segment table.

After it the length of every stored array is known, so headers can be written before the first plane.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mxconv.arrays import I8
from mxconv.codecs.bsfp.histogram import NUM_PATTERNS, PatternHistogram
from mxconv.codecs.bsfp.planes import encode_planes
from mxconv.codecs.bsfp.rescale import rescale_factor
from mxconv.codecs.bsfp.speq import paper_table
from mxconv.codecs.bsfp.table import SegmentTable
from mxconv.codecs.float16 import MAGNITUDE_MASK, FloatFormat
from mxconv.conversion.options import QuantizeOptions
from mxconv.conversion.plan import TensorPlan
from mxconv.conversion.rows import PatternRows
from mxconv.errors import CheckpointError
from mxconv.kernels.encoders import add_to_histogram, fit_table


@dataclass(frozen=True)
class Survey:
    """A tensor's plan with what its weights decided."""

    plan: TensorPlan
    table: SegmentTable | None = None  # of BSFP
    num_escapes: int = 0
    rescale_factor: float = 1.0
    row_shifts: I8 | None = None  # (rows,) where the table has some and they are known already

    def rows(self) -> PatternRows:
        assert self.plan.float_format is not None
        return PatternRows(self.plan.tensor, self.plan.float_format, self.plan.is_cast, self.rescale_factor)

    def original(self, start: int = 0, stop: int | None = None) -> NDArray[np.generic]:
        """The source's rows [start, stop), or all of it, after any cast: what must come back."""
        tensor = self.plan.tensor
        rows = tensor.array() if stop is None else tensor.rows(start, stop)
        if not self.plan.is_cast:
            return rows
        assert self.plan.float_format is not None
        return self.plan.float_format.encode(rows.astype(np.float32))


def survey_tensor(plan: TensorPlan, options: QuantizeOptions) -> Survey:
    """Read a tensor once (twice where it must be rescaled).

    Raises:
        CheckpointError: a weight is not finite, and --on-nonfinite is error.
    """
    if plan.codec == "keep":
        return Survey(plan)
    survey = Survey(plan)
    if plan.codec == "mxfp4":
        for start, patterns, _ in survey.rows().slices():
            if not _is_finite(patterns, plan.float_format):
                return _with_nonfinite(survey, start, options)
        return survey

    histogram, first_row = _histogram(survey)
    if first_row is not None:
        return _with_nonfinite(survey, first_row, options)
    if options.outliers == "rescale":
        factor = rescale_factor(_max_abs(histogram))
        if factor != 1.0:
            survey = replace(survey, rescale_factor=factor)
            histogram, _ = _histogram(survey)
    if options.segments == "paper":
        table = paper_table(histogram.float_format)
        return replace(survey, table=table, num_escapes=num_escapes(histogram, table))
    fitted = fit_table(histogram, options.residual_bits)
    shifts = histogram.row_shifts if fitted.table.has_row_shifts else None
    return replace(survey, table=fitted.table, row_shifts=shifts, num_escapes=fitted.num_escapes)


def num_escapes(histogram: PatternHistogram, table: SegmentTable) -> int:
    """How many weights of a histogram a table without row shifts does not cover: exact."""
    every_pattern = np.arange(NUM_PATTERNS, dtype=np.uint16)[None]
    escaped = encode_planes(every_pattern, table).escaped[0]
    return int(histogram.counts[escaped].sum())


def _histogram(survey: Survey) -> tuple[PatternHistogram, int | None]:
    """The histogram, and the first row of the first slice with a non-finite weight."""
    assert survey.plan.float_format is not None
    histogram = PatternHistogram(survey.plan.float_format)
    first_row = None
    for start, _, patterns in survey.rows().slices():
        add_to_histogram(histogram, patterns)
        if first_row is None and histogram.num_nonfinite:
            first_row = start
    return histogram, first_row


def _max_abs(histogram: PatternHistogram) -> float:
    occupied = np.flatnonzero(histogram.counts)
    return float(histogram.float_format.decode(occupied[-1:].astype(np.uint16))[0])


def _is_finite(patterns: np.ndarray, float_format: FloatFormat | None) -> bool:
    assert float_format is not None
    return bool(((patterns & MAGNITUDE_MASK) < float_format.infinity).all())


def _with_nonfinite(survey: Survey, first_row: int, options: QuantizeOptions) -> Survey:
    """Keep a tensor in 16 bits, or refuse it; `first_row` begins the slice that holds the first such weight."""
    plan = survey.plan
    assert plan.float_format is not None
    if options.on_nonfinite == "keep":
        return Survey(replace(plan, codec="keep", reason="holds non-finite weights"))
    for start, patterns, _ in survey.rows().slices():
        if start < first_row or _is_finite(patterns, plan.float_format):
            continue
        row, column = np.argwhere((patterns & MAGNITUDE_MASK) >= plan.float_format.infinity)[0]
        found = plan.float_format.decode(patterns[row : row + 1, column])[0]
        cause = " after rounding to 16 bits" if plan.is_cast else ""
        raise CheckpointError(
            f"{plan.tensor.path}: tensor {plan.name} holds {found} at index [{start + row}, {column}]{cause}; "
            "finite weights are required. Use --on-nonfinite keep to leave this tensor in 16 bits."
        )
    raise AssertionError("a survey found a non-finite weight that is gone")
