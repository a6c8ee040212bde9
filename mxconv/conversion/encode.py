"""Rows in, planes out: one tensor of a checkpoint as the arrays of a package, streamed through fixed memory."""

import hashlib
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mxconv.arrays import I64, U16
from mxconv.codecs.bsfp.packing import PackedBsfp
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
    offset = np.zeros(1, np.int64)  # escapes so far
    if plan.codec == "bsfp":
        emit(f"{plan.name}.escape_offsets", offset)
    for original, encoded in _slices(survey):
        contiguous = np.ascontiguousarray(original)
        if hash_source:
            source.update(contiguous.reshape(-1).view(np.uint8).data)
        if copy:
            emit(plan.name, contiguous)
        if plan.codec == "mxfp4":
            for part, piece in mxfp4_pieces(survey, encoded, scale_rule).items():
                emit(f"{plan.name}.{part}", piece)
        elif plan.codec == "bsfp":
            packed = bsfp_piece(survey, encoded)
            for part, piece in bsfp_pieces(packed, offset).items():
                emit(f"{plan.name}.{part}", piece)
            offset = offset + len(packed.escape_high)
        progress(contiguous.nbytes)
    return EncodedTensor(plan.name, source.hexdigest() if hash_source else None, dict(checksums))


def tensor_sha256(survey: Survey) -> str:
    """The hash that `encode_tensor` gives, alone."""
    digest = hashlib.sha256()
    for original, _ in _slices(survey):
        digest.update(np.ascontiguousarray(original).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def mxfp4_pieces(survey: Survey, patterns: U16, scale_rule: ScaleRule) -> dict[str, NDArray[np.generic]]:
    """The stored arrays of some rows: `codes` and `scales`."""
    assert survey.plan.float_format is not None
    codes, scales = encode_mxfp4(patterns, survey.plan.float_format, scale_rule)
    return {"codes": codes, "scales": scales}


def bsfp_piece(survey: Survey, patterns: U16) -> PackedBsfp:
    """Some rows as BSFP."""
    table = survey.table
    assert isinstance(table, SegmentTable)
    shifts = row_shifts_of(patterns, table.float_format) if table.has_row_shifts else None
    return encode_bsfp(patterns, table, shifts)


def bsfp_pieces(packed: PackedBsfp, first_escape: I64) -> dict[str, NDArray[np.generic]]:
    """The stored arrays of some rows; `first_escape` is (1,), how many escapes lie before them."""
    in_tiles = packed.escape_counts.sum(axis=1, dtype=np.int64)
    pieces: dict[str, NDArray[np.generic]] = {
        "codes": packed.codes,
        "residual_low": packed.residual_low,
        "scales": packed.scales,
        "escape_counts": packed.escape_counts,
        "escape_offsets": first_escape + np.cumsum(in_tiles),
        "escape_positions": packed.escape_positions,
        "escape_high": packed.escape_high,
    }
    if packed.residual_high.shape[2]:
        pieces["residual_high"] = packed.residual_high
    if packed.row_shifts is not None:
        pieces["row_shifts"] = packed.row_shifts
    return pieces


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
