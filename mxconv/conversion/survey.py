"""One reading pass over what will be quantized: non-finite weights, and for BSFP the histogram and its segment table.

After it the length of every stored array is known, so headers can be written before the first plane.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from math import prod
from typing import cast

import numpy as np
from numpy.typing import NDArray

from mxconv.arrays import F32, I8, U8, U16
from mxconv.checkpoint.tensor import SourceTensor
from mxconv.codecs import e8m0
from mxconv.codecs.bsfp.fit import FittedTable
from mxconv.codecs.bsfp.histogram import NUM_PATTERNS, PatternHistogram
from mxconv.codecs.bsfp.planes import encode_planes, planes_of
from mxconv.codecs.bsfp.reach import reaching_table
from mxconv.codecs.bsfp.speq import paper_table, rescale_factor
from mxconv.codecs.bsfp.table import NUM_CODES, RESIDUAL_BITS, SHIFTS_PER_OCTAVE, SegmentTable
from mxconv.codecs.float16 import MAGNITUDE_MASK, FloatFormat
from mxconv.codecs.vnni8 import TILE_ROWS, padded, unpack_nibbles, unpack_scales
from mxconv.conversion.options import QuantizeOptions
from mxconv.conversion.plan import PatternRows, TensorPlan, rounded
from mxconv.errors import CheckpointError
from mxconv.kernels.encoders import add_to_histogram, fit_table, row_shifts_of
from mxconv.package.stored import StoredArray, carried_array, matrix_arrays
from mxconv.workers import Advance


@dataclass(frozen=True)
class Segments:
    """How BSFP cuts a matrix."""

    table: SegmentTable
    num_escapes: int
    rescale_factor: float = 1.0
    row_shifts: I8 | None = None  # (rows,) where the table has some and they are known already

    def shifts_of(self, first: int, patterns: U16) -> I8 | None:
        """The row shifts of some rows, of which this is the first; None where the table has none."""
        if not self.table.has_row_shifts:
            return None
        if self.row_shifts is not None:
            return self.row_shifts[first : first + len(patterns)]
        return row_shifts_of(patterns, self.table.float_format)


@dataclass(frozen=True)
class GivenCodes:
    """The draft of a tensor that is not encoded here, as a package stores it; see `draft_file.py`."""

    codes: SourceTensor  # (T, C, 64)
    scales: SourceTensor  # (T, B, 16) of MXFP4, (T, G, 16) of BSFP

    def bsfp_rows(self, first_tile: int, shape: tuple[int, ...]) -> tuple[U8, U16]:
        """Codes, (rows, columns), and group scales, (rows, num_groups), of rows that begin with a row tile."""
        rows, columns = shape
        tiles = first_tile, first_tile + padded(rows, TILE_ROWS) // TILE_ROWS
        codes, scales = cast(U8, self.codes.rows(*tiles)), cast(U16, self.scales.rows(*tiles))
        return unpack_nibbles(codes)[:rows, :columns], unpack_scales(scales)[:rows]


@dataclass(frozen=True)
class Survey:
    """A tensor's plan with what its weights decided."""

    plan: TensorPlan
    segments: tuple[Segments, ...] = ()  # of BSFP: of the matrix, or of all experts together, or of each
    given: GivenCodes | None = None  # what is stored instead of the draft that the weights encode to

    @property
    def table(self) -> SegmentTable | None:
        """The segment table; of experts the first one's, since all have the same arrays."""
        return self.segments[0].table if self.segments else None

    @property
    def num_escapes(self) -> int:
        return sum(segments.num_escapes for segments in self.segments)

    @property
    def rescale_factor(self) -> float:
        """1 where nothing was rescaled; of experts the least."""
        return min((segments.rescale_factor for segments in self.segments), default=1.0)

    def segments_of(self, number: int) -> Segments:
        """The segments of one of `matrices`."""
        return self.segments[number if len(self.segments) > 1 else 0]

    def matrices(self) -> list[PatternRows]:
        """The matrices to encode: one, or each expert's, in order."""
        count = 1 if self.plan.experts is None else self.plan.experts.num_experts
        factors = [self.segments_of(n).rescale_factor if self.segments else 1.0 for n in range(count)]
        return [PatternRows(self.plan, number, factor) for number, factor in enumerate(factors)]

    def original(self, start: int = 0, stop: int | None = None) -> NDArray[np.generic]:
        """The source's rows [start, stop), or all of it, after any cast: what must come back."""
        tensor = self.plan.tensor
        rows = tensor.array() if stop is None else tensor.rows(start, stop)
        if not self.plan.is_cast:
            return rows
        return rounded(rows, tensor.dtype, self.plan.pattern_format)


def quantized_arrays(survey: Survey) -> tuple[StoredArray, ...]:
    """The arrays of a quantized tensor; none for a kept one."""
    plan = survey.plan
    if plan.carried is not None:
        return (carried_array(plan.carried),)
    if not plan.is_quantized:
        return ()
    return matrix_arrays(plan.codec, plan.name, plan.stored_shape, survey.table, survey.num_escapes)


def survey_tensor(plan: TensorPlan, options: QuantizeOptions) -> Survey:
    """Read a tensor once (twice where it must be rescaled).

    Raises:
        CheckpointError: a weight is not finite, and --on-nonfinite is error.
    """
    survey = Survey(plan)
    if not plan.is_quantized:
        if must_check_kept(plan, options):
            check_kept(survey)
        return survey
    if plan.carried is not None:
        check_carried(plan)
        return survey
    if plan.codec != "bsfp":
        for rows in survey.matrices():
            for start, _, patterns in rows.slices():
                if not _is_finite(patterns, plan.float_format):
                    return _with_nonfinite(survey, rows, start, options)
        return survey

    chosen: list[Segments] = []
    factors: list[float] = []
    tables = ExpertTables(plan.pattern_format, options.residual_bits)
    for rows in survey.matrices():
        histogram, first_row = _histogram(rows)
        if first_row is not None:
            return _with_nonfinite(survey, rows, first_row, options)
        factor = rescale_factor(_max_abs(histogram)) if options.outliers == "rescale" else 1.0
        if factor != 1.0:
            histogram, _ = _histogram(replace(rows, rescale_factor=factor))
        factors.append(factor)
        if plan.experts is not None and options.segments == "fitted":
            tables.add(histogram)
        else:
            chosen.append(_segments(histogram, factor, options))
    if not chosen:
        fits = tables.choose(own=len(set(factors)) > 1)  # one table has one factor
        chosen = [Segments(f.table, f.num_escapes, factor) for f, factor in zip(fits, factors, strict=False)]
    return replace(survey, segments=_joined(chosen))


@dataclass(frozen=True)
class SurveyTensor:
    """A task: the survey of a plan."""

    options: QuantizeOptions

    def __call__(self, plan: TensorPlan, advance: Advance) -> Survey:
        found = survey_tensor(plan, self.options)
        advance(plan.num_bytes if plan.is_quantized else 0)
        return found


def check_kept(survey: Survey) -> None:
    """Raises CheckpointError where a weight that stays as it is, after any cast, is not finite: one reading pass."""
    plan, tensor = survey.plan, survey.plan.tensor
    shape = tensor.shape or (1,)
    step = max(plan.slice_weights // max(prod(shape[1:]), 1), 1)
    for start in range(0, shape[0], step):
        stop = min(start + step, shape[0])
        rows = survey.original(start, stop) if tensor.shape else survey.original().reshape(1)
        if plan.float_format is not None:
            bad = (cast(U16, rows) & MAGNITUDE_MASK) >= plan.float_format.infinity
        else:
            bad = ~np.isfinite(cast(F32, rows))
        if bad.any():
            first, *inside = np.argwhere(bad)[0]
            found = rows[(first, *inside)]
            value = found if plan.float_format is None else plan.float_format.decode(np.array([found]))[0]
            raise _nonfinite(plan, value, [start + first, *inside], "convert it with what it holds")
        if tensor.shape:
            tensor.release(start, stop)


def _nonfinite(plan: TensorPlan, value: object, index: list[int], outcome: str) -> CheckpointError:
    cause = f" after rounding {plan.tensor.source_type} to {plan.dtype}" if plan.is_cast else ""
    return CheckpointError(
        f"{plan.tensor.path}: tensor {plan.name} holds {value} at index [{', '.join(map(str, index))}]{cause}; "
        f"finite weights are required. Use --on-nonfinite keep to {outcome}."
    )


def check_carried(plan: TensorPlan) -> None:
    """Raises CheckpointError where a scale of the source's own MXFP4 is no number: one reading pass of them."""
    assert plan.carried is not None
    if plan.carried.part == "codes":
        return
    for expert in range(plan.tensor.shape[0]):
        found = np.argwhere(plan.tensor.rows(expert, expert + 1)[0] == e8m0.NAN)
        if len(found):
            raise CheckpointError(
                f"{plan.tensor.path}: tensor {plan.name} holds {e8m0.NAN} at index [{expert}, {found[0][0]}, "
                f"{found[0][1]}]; scales of 0 to 254 are required. Use --skip '{plan.name}' to keep these experts as "
                "they are."
            )


def must_check_kept(plan: TensorPlan, options: QuantizeOptions) -> bool:
    """Whether weights that stay as they are must be finite: all floats but those that --skip names."""
    is_float = plan.float_format is not None or plan.tensor.dtype in ("F32", "F64")
    is_skipped = any(fnmatchcase(plan.name, glob) for glob in options.skip)
    return not plan.is_quantized and is_float and not is_skipped and options.on_nonfinite == "error"


def _segments(histogram: PatternHistogram, factor: float, options: QuantizeOptions) -> Segments:
    """The segments of the matrix that was counted."""
    if options.segments == "paper":
        table = paper_table(histogram.float_format)
        return Segments(table, num_escapes(histogram, table), factor)
    fitted = fit_table(histogram, options.residual_bits)
    shifts = histogram.row_shifts if fitted.table.has_row_shifts else None
    return Segments(fitted.table, fitted.num_escapes, factor, shifts)


def with_codes(survey: Survey, given: GivenCodes) -> Survey:
    """A survey whose draft is given. Starts of BSFP reach further then; one reading pass counts the escapes."""
    if survey.plan.codec != "bsfp":
        return replace(survey, given=given)
    segments = [replace(each, table=reaching_table(each.table), num_escapes=0) for each in survey.segments]
    made, tile = replace(survey, given=given, segments=tuple(segments)), 0
    for number, rows in enumerate(made.matrices()):
        place = number if len(segments) > 1 else 0
        for start, _, patterns in rows.slices():
            codes, _ = given.bsfp_rows(tile, patterns.shape)
            shifts = segments[place].shifts_of(start, patterns)
            found = int(planes_of(patterns, codes, segments[place].table, shifts).escaped.sum())
            segments[place] = replace(segments[place], num_escapes=segments[place].num_escapes + found)
            tile += padded(len(patterns), TILE_ROWS) // TILE_ROWS
    return replace(made, segments=tuple(segments))


def num_escapes(histogram: PatternHistogram, table: SegmentTable) -> int:
    """How many weights of a histogram a table without row shifts does not cover: exact."""
    every_pattern = np.arange(NUM_PATTERNS, dtype=np.uint16)[None]
    escaped = encode_planes(every_pattern, table).escaped[0]
    return int(histogram.counts[escaped].sum())


def _joined(segments: Iterable[Segments]) -> tuple[Segments, ...]:
    """One where all are the same."""
    each = tuple(segments)
    if len({(s.table, s.rescale_factor) for s in each}) > 1:
        return each
    return (replace(each[0], num_escapes=sum(s.num_escapes for s in each)),)


def _histogram(rows: PatternRows) -> tuple[PatternHistogram, int | None]:
    """The histogram, and the first row of the first slice with a non-finite weight."""
    histogram = PatternHistogram(rows.plan.pattern_format)
    first_row = None
    for start, _, patterns in rows.slices():
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


def _with_nonfinite(survey: Survey, rows: PatternRows, first_row: int, options: QuantizeOptions) -> Survey:
    """Keep a tensor in 16 bits, or refuse it; `first_row` begins the slice that holds the first such weight."""
    plan = survey.plan
    assert plan.float_format is not None
    if options.on_nonfinite == "keep":
        float_format = plan.float_format if plan.fp8 is None else None
        reason = "holds non-finite weights"
        return Survey(replace(plan, codec="keep", reason=reason, float_format=float_format, experts=None))
    for start, _, patterns in rows.slices():
        if start < first_row or _is_finite(patterns, plan.float_format):
            continue
        row, *inside = np.argwhere((patterns & MAGNITUDE_MASK) >= plan.float_format.infinity)[0]
        found = plan.float_format.decode(patterns[(slice(row, row + 1), *inside)])[0]
        index = [start + row, *inside]
        if plan.experts is not None:
            index = [rows.expert, *(index if plan.experts.axes == "out_in" else index[::-1])]
        raise _nonfinite(plan, found, index, "leave this tensor in 16 bits")
    raise AssertionError("a survey found a non-finite weight that is gone")


NUMBER_BITS = 8 * 16  # what one number of a table takes in the manifest


class ExpertTables:
    """Fits, expert by expert, at one residual width or the best: of each histogram only tables are kept."""

    def __init__(self, float_format: FloatFormat, residual_bits: int | None) -> None:
        widths = RESIDUAL_BITS[float_format.name] if residual_bits is None else (residual_bits,)
        self._choices = [(width, has_shifts) for has_shifts in (False, True) for width in widths]
        self._own: list[list[FittedTable]] = []  # by expert and choice
        self._all = PatternHistogram(float_format)

    def add(self, histogram: PatternHistogram) -> None:
        """The next expert's histogram."""
        self._own.append([fit_table(histogram, *choice) for choice in self._choices])
        self._all.include(histogram)

    def choose(self, *, own: bool = False) -> list[FittedTable]:
        """One table for all experts, or as many as there are experts; `own`: each must have its own."""
        price = NUMBER_BITS * len(self._own) / self._all.num_weights  # in bits a weight of the tensor
        apart = list(zip(*self._own, strict=True))
        costs = [sum(fitted.cost for fitted in fits) / len(fits) + price * _num_numbers(fits[0]) for fits in apart]
        best = costs.index(min(costs))
        if own:
            return list(apart[best])
        together = min((fit_table(self._all, *choice) for choice in self._choices), key=lambda fitted: fitted.cost)
        return [together] if together.cost <= costs[best] else list(apart[best])


def _num_numbers(fitted: FittedTable) -> int:
    """How many numbers the manifest holds of a table."""
    return NUM_CODES * ((SHIFTS_PER_OCTAVE if fitted.table.has_row_shifts else 1) + 1)
