"""Rows in, planes out: one tensor of a checkpoint as the arrays of a package, streamed through fixed memory."""

import hashlib
import zlib
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from mxconv.arrays import U8, U16
from mxconv.checkpoint.stacked import CarriedTensor
from mxconv.codecs import e8m0
from mxconv.codecs.bsfp.packing import PackedBsfp, encode_bsfp_as, escape_offsets
from mxconv.codecs.mxfp4 import BLOCK, NonFiniteError
from mxconv.codecs.mxint8 import quantize_mxint8
from mxconv.codecs.vnni8 import TILE_ROWS, pack_quads, pack_scales, pad, padded
from mxconv.conversion.plan import TensorPlan
from mxconv.conversion.survey import Survey
from mxconv.kernels.encoders import cast_bsfp, encode_mxfp4
from mxconv.package.growing_shard import EncodedTensor, Write, Written
from mxconv.package.manifest import OptionsRecord
from mxconv.package.staging import Sink
from mxconv.package.stored import carried_array
from mxconv.workers import Advance

BYTES_A_SLICE_WEIGHT = 4  # slices of tensors that are copied: 4 MB
NOTHING = np.zeros(0, np.uint16)


def encode_tensor(
    survey: Survey,
    options: OptionsRecord,
    write: Write,
    arrays: Collection[str],
    progress: Advance,
) -> EncodedTensor:
    """Stream one tensor: its hash, and the checksum of each array that was written.

    Args:
        survey: its plan and table.
        options: of the conversion, which name the rules for scales.
        write: called with ascending, adjoining pieces of each array.
        arrays: the names of those to write; under its own name the 16-bit tensor is written.
        progress: called with the 16-bit bytes of each slice.

    Raises:
        NonFiniteError: MXFP4 or MXINT8 of a weight that is not finite.
    """
    plan, source = survey.plan, hashlib.sha256()
    if arrays and all(name == plan.name for name in arrays):
        survey = Survey(replace(plan, codec="keep", carried=None))
    checksums: Counter[str] = Counter()
    written: Counter[str] = Counter()

    def emit(name: str, piece: NDArray[np.generic]) -> None:
        contiguous = np.ascontiguousarray(piece)
        write(name, written[name], contiguous)
        checksums[name] = zlib.crc32(contiguous.reshape(-1).view(np.uint8).data, checksums[name])
        written[name] += contiguous.nbytes

    for original, pieces in encoded_slices(survey, options):
        source.update(original.reshape(-1).view(np.uint8).data)
        for name, piece in {plan.name: original, **pieces}.items():
            if name in arrays:
                emit(name, piece)
        progress(original.nbytes)
    return EncodedTensor(plan.name, source.hexdigest(), dict(checksums))


def encoded_slices(
    survey: Survey, options: OptionsRecord
) -> Iterator[tuple[NDArray[np.generic], dict[str, NDArray[np.generic]]]]:
    """A tensor slice by slice: rows of the 16-bit tensor, contiguous, and the piece of each stored array by its name.

    Both adjoin, in ascending order. Where a stack of experts is stored another way than it lies, rows and pieces come
    by turns.

    Raises:
        NonFiniteError: MXFP4 or MXINT8 of a weight that is not finite.
    """
    plan, num_escapes, is_first = survey.plan, 0, True
    first_tile = 0
    if plan.carried is not None:
        yield from _carried_slices(plan, plan.carried)
        return
    for piece in _slices(survey):
        parts: dict[str, NDArray[np.generic]] = {}
        if not len(piece.patterns):
            pass
        elif survey.given is not None and plan.codec == "mxfp4":
            tiles = first_tile, first_tile + padded(len(piece.patterns), TILE_ROWS) // TILE_ROWS
            parts = {"codes": survey.given.codes.rows(*tiles), "scales": survey.given.scales.rows(*tiles)}
            first_tile = tiles[1]
        elif plan.codec == "mxfp4":
            codes, scales = encode_mxfp4(piece.patterns, survey.plan.pattern_format, options.scale_rule)
            parts = {"codes": codes, "scales": scales}
        elif plan.codec == "mxint8":
            elements, scales = quantize_mxint8(survey.plan.pattern_format.decode(piece.patterns))
            elements, scales = pad(elements, TILE_ROWS, 1), pad(scales, TILE_ROWS, 1)
            parts = {"elements": pack_quads(elements), "scales": pack_scales(scales)}
        elif plan.codec == "bsfp":
            segments = survey.segments_of(piece.matrix)
            shifts = segments.shifts_of(piece.start, piece.patterns)
            if survey.given is None:
                packed = cast_bsfp(piece.patterns, segments.table, shifts, options.group_scales)
            else:
                draft = survey.given.bsfp_rows(first_tile, piece.patterns.shape)
                packed = encode_bsfp_as(piece.patterns, *draft, segments.table, shifts)
            first_tile += len(packed.codes)
            offsets = num_escapes + escape_offsets(packed)
            parts = _bsfp_parts(packed) | {"escape_offsets": offsets if is_first else offsets[1:]}
            num_escapes, is_first = int(offsets[-1]), False
        yield np.ascontiguousarray(piece.original), {f"{plan.name}.{part}": p for part, p in parts.items()}


def _bsfp_parts(packed: PackedBsfp) -> dict[str, NDArray[np.generic]]:
    """The stored arrays of some rows, but for the places of their escapes among all."""
    parts = {name: array for name, array in vars(packed).items() if array is not None}
    if not packed.residual_high.shape[2]:
        del parts["residual_high"]
    return parts


class _Slice(NamedTuple):
    """A piece of a tensor: some of its rows, and what is encoded; either may be empty."""

    original: NDArray[np.generic]
    patterns: U16 = NOTHING
    matrix: int = 0  # that the patterns are of
    start: int = 0  # the row that they begin at


def _slices(survey: Survey) -> Iterator[_Slice]:
    """A tensor in pieces."""
    plan = survey.plan
    if not plan.is_quantized or plan.carried is not None:
        yield from _kept_slices(survey)
        return
    for number, rows in enumerate(survey.matrices()):
        is_turned = plan.experts is not None and plan.experts.axes == "in_out"
        for start, original, patterns in rows.slices():
            yield _Slice(NOTHING if is_turned else original, patterns, number, start)
        if is_turned:  # what was encoded are columns of the source
            (expert,) = survey.original(number, number + 1)
            yield from (_Slice(expert[a:b]) for a, b in _steps(plan, expert.shape[0], expert.nbytes))
            plan.tensor.release(number, number + 1)


def _carried_slices(
    plan: TensorPlan, carried: CarriedTensor
) -> Iterator[tuple[NDArray[np.generic], dict[str, NDArray[np.generic]]]]:
    """The source's own MXFP4, some tiles of an expert at a time."""
    name, tensor = carried_array(carried).name, plan.tensor
    for number in range(tensor.shape[0]):
        (expert,) = cast(U8, tensor.rows(number, number + 1))
        for start, stop in _steps(plan, expert.shape[0], expert.nbytes, TILE_ROWS):
            rows = np.ascontiguousarray(expert[start:stop])
            if carried.part == "scales" and (rows == e8m0.NAN).any():
                row, block = np.argwhere(rows == e8m0.NAN)[0]
                raise NonFiniteError(start + int(row), int(block) * BLOCK, float("nan"))
            yield rows, {name: carried.to_tiles(rows)}
        tensor.release(number, number + 1)


def _kept_slices(survey: Survey) -> Iterator[_Slice]:
    tensor = survey.plan.tensor
    if not tensor.shape:
        yield _Slice(survey.original().reshape(1))
        return
    for start, stop in _steps(survey.plan, tensor.shape[0], tensor.num_bytes):
        yield _Slice(survey.original(start, stop))
        tensor.release(start, stop)


def _steps(plan: TensorPlan, num_rows: int, num_bytes: int, multiple: int = 1) -> Iterator[tuple[int, int]]:
    """Ranges of rows of some megabytes."""
    row_bytes = max(num_bytes // max(num_rows, 1), 1)
    step = max(BYTES_A_SLICE_WEIGHT * plan.slice_weights // row_bytes // multiple, 1) * multiple
    for start in range(0, num_rows, step):
        yield start, min(start + step, num_rows)


class EncodePiece(NamedTuple):
    """Tensors whose arrays go into one sink."""

    tensors: tuple[tuple[Survey, Collection[str]], ...]  # each with the names of its arrays that are written
    sink: Sink | None  # None where nothing is: they are only hashed

    @property
    def num_bytes(self) -> int:
        return sum(survey.plan.num_bytes for survey, _ in self.tensors)


@dataclass(frozen=True)
class EncodeTensors:
    """A task: encode the tensors of a piece into its sink."""

    options: OptionsRecord

    def __call__(self, piece: EncodePiece, advance: Advance) -> Written:
        def encode(write: Write) -> list[EncodedTensor]:
            return [encode_tensor(survey, self.options, write, names, advance) for survey, names in piece.tensors]

        return Written(encode(_nowhere)) if piece.sink is None else piece.sink.take(encode)


def _nowhere(name: str, _: int, __: NDArray[np.generic]) -> None:
    raise AssertionError(f"array {name} has a place")


def hash_tensor(survey: Survey, _: Advance) -> str:
    """Return the SHA-256 of a 16-bit tensor: a task."""
    digest = hashlib.sha256()
    for part in _slices(survey):
        digest.update(np.ascontiguousarray(part.original).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
