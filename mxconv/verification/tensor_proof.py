"""One tensor of a package: rebuilt by slices of rows, compared with its source or recorded hash, and encoded again."""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Literal, cast

import numpy as np
from numpy.typing import NDArray

from mxconv.arrays import U16
from mxconv.checkpoint.fp8_matrix import Fp8Matrix
from mxconv.checkpoint.safetensors_header import DTYPES
from mxconv.checkpoint.tensor import SourceTensor
from mxconv.codecs.float16 import BF16, FORMATS
from mxconv.codecs.vnni8 import TILE_ROWS
from mxconv.conversion.encode import encoded_slices
from mxconv.conversion.plan import TensorPlan
from mxconv.conversion.survey import Segments, Survey
from mxconv.errors import CheckpointError, MxconvError
from mxconv.kernels.encoders import decode_bsfp
from mxconv.package.manifest import TensorRecord
from mxconv.package.package import Package
from mxconv.package.stored import tensor_arrays
from mxconv.workers import Advance

SLICE_BYTES = 4 << 20


class RebuiltTensor:
    """A tensor of a package that has its target. The rows of a stack of experts are those of its experts, in turn."""

    def __init__(self, package: Package, record: TensorRecord) -> None:
        """Find it.

        Raises:
            PackageError: its escape lists contradict themselves.
        """
        self.package, self.record, self._stack = package, record, record.stack
        is_matrix = record.codec == "bsfp" and self._stack is None
        self._stored = package.bsfp(record) if is_matrix else None
        self._expert = -1  # the one that was rebuilt last
        self._matrix: NDArray[np.generic] = np.zeros((0, 0), np.uint16)  # of that expert, as the source has it
        self._is_rebuilt = self._stack is not None and not package.keeps(record)

    @property
    def num_rows(self) -> int:
        """A tensor of no dimensions has one."""
        shape = self.record.shape
        return prod(shape[:2]) if self._stack is not None else shape[0] if shape else 1

    def rows(self, start: int, stop: int) -> NDArray[np.generic]:
        """Rows [start, stop): of a matrix whole tiles, or up to its last row; of a stack rows of one expert.

        Raises:
            CodecError: an escape list is damaged.
            PackageError: those of an expert contradict themselves.
        """
        if self._stored is not None:
            return self._stored.target_rows(start, stop, decode_bsfp)
        if self._is_rebuilt:
            expert, first = divmod(start, self.record.shape[1])
            return self._rebuilt(expert)[first : first + stop - start]
        kept = self.package.kept(self.record)
        if self._stack is not None:
            return kept.array().reshape(self.num_rows, -1)[start:stop]
        return kept.rows(start, stop) if kept.shape else kept.array().reshape(1)

    def slices(self) -> Iterator[NDArray[np.generic]]:
        """Ascending slices, dropped from resident memory one by one."""
        unit = self.num_rows if self._stack is None else self.record.shape[1]
        row_bytes = max(num_bytes_of(self.record) // max(self.num_rows, 1), 1)
        step = max(SLICE_BYTES // row_bytes // TILE_ROWS, 1) * TILE_ROWS
        for begin in range(0, self.num_rows, max(unit, 1)):
            for start in range(begin, begin + unit, step):
                stop = min(start + step, begin + unit)
                yield self.rows(start, stop)
                self.release(start, stop)

    def release(self, start: int, stop: int) -> None:
        """Drop rows from resident memory; of a stack, where an expert ends, all of it."""
        if self._stack is None:
            self.package.release(self.record, start, stop)
        elif stop % self.record.shape[1] == 0 and stop > start:
            self.package.release_expert(self.record, start // self.record.shape[1])

    def _rebuilt(self, expert: int) -> NDArray[np.generic]:
        carried = self.record.carried_tensor
        if expert == self._expert:
            return self._matrix
        if carried is not None:
            mxfp4 = self.package.mxfp4(self.record, expert)
            self._matrix = carried.from_tiles(mxfp4.codes if carried.part == "codes" else mxfp4.scales)
        elif self._stack is not None:
            stored = self.package.bsfp(self.record, expert)
            self._matrix = self._stack.matrix(stored.target_rows(0, stored.shape[0], decode_bsfp))
        self._expert = expert
        return self._matrix


def num_bytes_of(record: TensorRecord) -> int:
    """Bytes of a tensor in its own dtype; 0 where the dtype is unknown."""
    return prod(record.shape) * DTYPES[record.dtype].num_bits // 8 if record.dtype in DTYPES else 0


Status = Literal["bit-exact", "derived", "kept", "lossy", "mismatch", "missing"]


@dataclass(frozen=True)
class TensorVerification:
    """What was proven of one tensor, see docs/verify.md.

    `sha256_source` is the recorded one where no source was given, `sha256_reconstructed` that of bytes that came out of
    the package: None where it has none of them.
    """

    name: str
    codec: str
    status: Status
    sha256_source: str | None = None
    sha256_reconstructed: str | None = None
    max_abs_error: float | None = None
    detail: str = ""
    is_kept: bool = False  # its bytes are stored as they are, or stay in the source that the package references
    is_derived: bool = False  # its draft's codes are those that the source encodes to


def verify_alone(package: Package, record: TensorRecord) -> TensorVerification:
    """Rebuild a tensor and compare its hash with the recorded one."""
    digest = hashlib.sha256()
    try:
        for rows in RebuiltTensor(package, record).slices():
            digest.update(_bytes(rows).data)
    except MxconvError as error:
        return TensorVerification(record.name, record.codec, "mismatch", record.sha256, detail=str(error))
    found = digest.hexdigest()
    is_exact = found == record.sha256
    return TensorVerification(
        record.name,
        record.codec,
        "bit-exact" if is_exact else _declared_loss(record),
        record.sha256,
        found,
        0.0 if is_exact else None,
        is_kept=package.keeps(record),
    )


def verify_with_source(
    package: Package, record: TensorRecord, source: Mapping[str, SourceTensor]
) -> TensorVerification:
    """Compare a tensor with the source's bit for bit where the package has it, and encode its draft again."""
    tensor = source.get(record.name)
    if tensor is None:
        return TensorVerification(record.name, record.codec, "missing", detail="not in the source")
    if tensor.shape != tuple(record.shape) or tensor.source_type not in (record.dtype, "F32", record.rounded_from):
        detail = f"source has {tensor.source_type} {list(tensor.shape)}, package {record.dtype} {record.shape}"
        if record.rounded_from is not None:
            detail += f", rounded from {record.rounded_from}"
        return TensorVerification(record.name, record.codec, "mismatch", detail=detail)
    try:
        return _compare(package, record, _survey_of(record, source))
    except MxconvError as error:
        return TensorVerification(record.name, record.codec, "mismatch", detail=str(error))


def _compare(package: Package, record: TensorRecord, survey: Survey) -> TensorVerification:
    """In one pass: each slice of the source is encoded, and compared with what comes out of the package, if it does."""
    rebuilt = RebuiltTensor(package, record)
    digest = hashlib.sha256()  # of what comes out of the package, or of the source where nothing does
    source_digest: hashlib._Hash | None = None  # once something differs
    max_abs_error, row = 0.0, 0
    stale: set[str] = set()
    given = package.manifest.draft_weights
    is_given = given is not None and record.name in given.tensors  # codes that no source encodes to
    offsets: Counter[str] = Counter()
    for original, pieces in encoded_slices(survey, package.manifest.options):
        for name, piece in pieces.items():
            if not is_given and not is_stored(package, name, offsets[name], piece):
                stale.add(name)
            offsets[name] += piece.nbytes
        if not len(original):
            continue
        found = rebuilt.rows(row, row + len(original)) if package.has_target else original
        if source_digest is None and not np.array_equal(_bytes(found), _bytes(original)):
            source_digest = digest.copy()
        if source_digest is not None:
            max_abs_error = max(max_abs_error, _max_abs_error(found, original, record.dtype))
            source_digest.update(_bytes(original).data)
        digest.update(_bytes(found).data)
        rebuilt.release(row, row + len(original))
        row += len(original)
    sha256_found = digest.hexdigest()
    sha256 = sha256_found if source_digest is None else source_digest.hexdigest()
    has_draft = record.is_quantized
    if not is_given:
        stale |= {array.name for array in tensor_arrays(record) if offsets[array.name] != array.num_bytes}
    details = [f"{name} differs from what the source encodes to" for name in sorted(stale)]
    if sha256 != record.sha256:
        details.append("the source is not the one that was converted")
    status: Status
    if details:
        status = "mismatch"
    elif package.has_target:
        status = "bit-exact" if sha256_found == sha256 else _declared_loss(record)
    else:
        status = "kept" if not has_draft else "lossy" if is_given else "derived"
    return TensorVerification(
        record.name,
        record.codec,
        status,
        sha256,
        sha256_found if package.has_target else None,
        max_abs_error if package.has_target else None,
        "; ".join(details),
        is_kept=package.keeps(record) or not (package.has_target or has_draft),
        is_derived=has_draft and not (is_given or stale),
    )


def is_stored(package: Package, name: str, offset: int, piece: NDArray[np.generic]) -> bool:
    """Whether an array of the package has these bytes at this offset."""
    stored = package.arrays[name].array().reshape(-1).view(np.uint8)
    return np.array_equal(stored[offset : offset + piece.nbytes], _bytes(piece))


def _declared_loss(record: TensorRecord) -> Status:
    """A difference is a loss where the manifest declares the tensor rescaled, and a mismatch anywhere else."""
    return "lossy" if record.is_rescaled else "mismatch"


def _survey_of(record: TensorRecord, source: Mapping[str, SourceTensor]) -> Survey:
    """The survey that a conversion of this tensor would have made, taken from its record."""
    tensor = source[record.name]
    fp8 = None
    if record.scaled is not None:
        if record.scaled.by not in source:
            raise CheckpointError(f"{tensor.path}: tensor {record.scaled.by} is missing; the source's own is required.")
        fp8 = Fp8Matrix(tensor, source[record.scaled.by], (record.scaled.block[0], record.scaled.block[1]))
    plan = TensorPlan(
        tensor,
        record.codec,
        record.reason,
        BF16 if fp8 is not None else FORMATS.get(record.dtype),
        is_cast=tensor.dtype != record.dtype,
        experts=record.stack if record.carried is None else None,
        carried=record.carried_tensor,
        fp8=fp8,
    )
    return Survey(
        plan,
        tuple(Segments(s.table(record.dtype), s.num_escapes, s.rescale_factor) for s in record.all_segments),
    )


def _max_abs_error(found: NDArray[np.generic], original: NDArray[np.generic], dtype: str) -> float:
    """Largest absolute difference of two slices; infinite where one is not finite and the bits differ."""
    if np.array_equal(_bytes(found), _bytes(original)):  # as bytes: equal NaNs count as equal
        return 0.0
    if dtype not in FORMATS:
        return float("inf")
    values = [FORMATS[dtype].decode(cast(U16, array)).astype(np.float64) for array in (found, original)]
    differences = np.abs(values[0] - values[1])[found != original]
    return float(differences.max()) if np.isfinite(differences).all() else float("inf")


def _bytes(array: NDArray[np.generic]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


@dataclass(frozen=True)
class VerifyPiece:
    """One tensor."""

    record: TensorRecord
    source: Mapping[str, SourceTensor] | None  # what it was converted from, and its scales; None: nobody looks

    @property
    def num_bytes(self) -> int:
        return num_bytes_of(self.record)

    @classmethod
    def of(cls, record: TensorRecord, tensors: Mapping[str, SourceTensor] | None) -> "VerifyPiece":
        """With what is needed of the source's tensors."""
        if tensors is None:
            return cls(record, None)
        names = [record.name, *([record.scaled.by] if record.scaled is not None else [])]
        return cls(record, {name: tensors[name] for name in names if name in tensors})


@dataclass(frozen=True)
class VerifyTensor:
    """A task: rebuild a tensor and compare it; None where there is nothing to compare."""

    package: Package

    def __call__(self, piece: VerifyPiece, advance: Advance) -> TensorVerification | None:
        package, record, found = self.package, piece.record, None
        if piece.source is not None:
            found = verify_with_source(package, record, piece.source)
        elif package.has_target:
            found = verify_alone(package, record)
        elif record.is_quantized:  # only a rounded copy is here, for which the file's hash speaks
            found = TensorVerification(record.name, record.codec, "lossy", record.sha256)
        advance(num_bytes_of(record))
        return found
