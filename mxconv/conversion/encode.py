"""Rows in, planes out: one tensor of a checkpoint as the arrays of a package, streamed through fixed memory."""

import hashlib
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mxconv.arrays import U16
from mxconv.codecs.bsfp.packing import PackedBsfp, escape_offsets
from mxconv.codecs.bsfp.table import SegmentTable
from mxconv.codecs.mxfp4 import ScaleRule
from mxconv.conversion.survey import Survey
from mxconv.kernels.encoders import encode_bsfp, encode_mxfp4, row_shifts_of

MAX_SLICE_BYTES = 4 << 20  # of tensors that are copied

Write = Callable[[str, int, NDArray[np.generic]], None]
"""Takes an array's name, the byte offset inside it, and what belongs there."""


@dataclass(frozen=True)
class EncodedTensor:
    """What was written for a tensor."""

    name: str
    sha256: str | None  # of the 16-bit tensor, row-major; None where somebody else hashes it
    arrays: dict[str, int]  # array name to the CRC-32 of its bytes


def encode_tensor(
    survey: Survey,
    scale_rule: ScaleRule,
    write: Write,
    *,
    copy: bool,
    hash_source: bool = True,
    progress: Callable[[int], None] = lambda _: None,
) -> EncodedTensor:
    """Stream one tensor.

    Args:
        survey: its plan and table.
        scale_rule: of MXFP4.
        write: called with ascending, adjoining pieces of each array.
        copy: also write the 16-bit tensor under its own name.
        hash_source: whether to hash the 16-bit tensor.
        progress: called with the 16-bit bytes of each slice.

    Returns:
        The tensor's hash, and each written array's checksum.

    Raises:
        NonFiniteError: MXFP4 of a weight that is not finite.
    """
    checksums: Counter[str] = Counter()
    written: Counter[str] = Counter()

    def emit(name: str, piece: NDArray[np.generic]) -> None:
        contiguous = np.ascontiguousarray(piece)
        write(name, written[name], contiguous)
        checksums[name] = zlib.crc32(contiguous.reshape(-1).view(np.uint8).data, checksums[name])
        written[name] += contiguous.nbytes

    plan, source = survey.plan, hashlib.sha256()
    for original, pieces in encoded_slices(survey, scale_rule):
        if hash_source:
            source.update(original.reshape(-1).view(np.uint8).data)
        if copy:
            emit(plan.name, original)
        for name, piece in pieces.items():
            emit(name, piece)
        progress(original.nbytes)
    return EncodedTensor(plan.name, source.hexdigest() if hash_source else None, dict(checksums))


def encoded_slices(
    survey: Survey, scale_rule: ScaleRule
) -> Iterator[tuple[NDArray[np.generic], dict[str, NDArray[np.generic]]]]:
    """A tensor slice by slice, and what is stored for it.

    Args:
        survey: its plan and table.
        scale_rule: of MXFP4.

    Yields:
        The 16-bit rows, contiguous, and the piece of each stored array by its name: pieces adjoin, in ascending order.

    Raises:
        NonFiniteError: MXFP4 of a weight that is not finite.
    """
    plan, num_escapes, num_rows, is_first = survey.plan, 0, 0, True
    for original, encoded in _slices(survey):
        parts: dict[str, NDArray[np.generic]] = {}
        if plan.codec == "mxfp4":
            parts = _mxfp4_parts(survey, encoded, scale_rule)
        elif plan.codec == "bsfp":
            packed = _bsfp_piece(survey, num_rows, encoded)
            offsets = num_escapes + escape_offsets(packed)
            parts = _bsfp_parts(packed) | {"escape_offsets": offsets if is_first else offsets[1:]}
            num_escapes, num_rows, is_first = int(offsets[-1]), num_rows + len(encoded), False
        yield np.ascontiguousarray(original), {f"{plan.name}.{part}": piece for part, piece in parts.items()}


def tensor_sha256(survey: Survey) -> str:
    """The hash that `encode_tensor` gives, alone."""
    digest = hashlib.sha256()
    for original, _ in _slices(survey):
        digest.update(np.ascontiguousarray(original).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _mxfp4_parts(survey: Survey, patterns: U16, scale_rule: ScaleRule) -> dict[str, NDArray[np.generic]]:
    """The stored arrays of some rows: `codes` and `scales`."""
    assert survey.plan.float_format is not None
    codes, scales = encode_mxfp4(patterns, survey.plan.float_format, scale_rule)
    return {"codes": codes, "scales": scales}


def _bsfp_piece(survey: Survey, first: int, patterns: U16) -> PackedBsfp:
    """Some rows, of which this is the first, as BSFP."""
    table, shifts = survey.table, None
    assert isinstance(table, SegmentTable)
    if table.has_row_shifts and survey.row_shifts is not None:
        shifts = survey.row_shifts[first : first + len(patterns)]
    elif table.has_row_shifts:
        shifts = row_shifts_of(patterns, table.float_format)
    return encode_bsfp(patterns, table, shifts)


def _bsfp_parts(packed: PackedBsfp) -> dict[str, NDArray[np.generic]]:
    """The stored arrays of some rows, but for the places of their escapes among all."""
    parts: dict[str, NDArray[np.generic]] = {
        "codes": packed.codes,
        "residual_low": packed.residual_low,
        "scales": packed.scales,
        "escape_counts": packed.escape_counts,
        "escape_positions": packed.escape_positions,
        "escape_high": packed.escape_high,
    }
    if packed.residual_high.shape[2]:
        parts["residual_high"] = packed.residual_high
    if packed.row_shifts is not None:
        parts["row_shifts"] = packed.row_shifts
    return parts


def _slices(survey: Survey) -> Iterator[tuple[NDArray[np.generic], U16]]:
    """Pieces of a tensor: 16-bit rows of a matrix with what is encoded of them, or bytes to copy."""
    plan = survey.plan
    if plan.codec != "keep":
        for _, original, encoded in survey.rows().slices():
            yield original, encoded
        return
    nothing = np.zeros(0, np.uint16)
    tensor = plan.tensor
    if not tensor.shape:
        yield survey.original().reshape(1), nothing
        return
    row_bytes = max(tensor.num_bytes // max(tensor.shape[0], 1), 1)
    step = max(MAX_SLICE_BYTES // row_bytes, 1)
    for start in range(0, tensor.shape[0], step):
        stop = min(start + step, tensor.shape[0])
        yield survey.original(start, stop), nothing
        tensor.release(start, stop)
