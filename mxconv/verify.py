"""Proof instead of a claim: is the package whole, is every weight the source's, does speculation change a single bit?

    verification = verify(Path("package"), source=checkpoint)

Files are hashed, every tensor is rebuilt and compared bit for bit, every draft tensor is encoded again from the source
and compared code for code. `verify_decoding` runs prompts with and without drafts and compares tokens and logits.
"""

import hashlib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Literal

import numpy as np

from mxconv import __version__
from mxconv.arrays import F32
from mxconv.checkpoint.damaged_files import damaged_files
from mxconv.checkpoint.dtypes import DTYPES
from mxconv.checkpoint.manifest import (
    FILE_NAME,
    CertificateRecord,
    DecodeRecord,
    Manifest,
    TensorRecord,
    read_manifest,
)
from mxconv.checkpoint.package import Package
from mxconv.checkpoint.source import Checkpoint
from mxconv.codecs.float16 import FORMATS
from mxconv.codecs.vnni8 import TILE_ROWS
from mxconv.conversion.encode import encode_tensor
from mxconv.conversion.plan import TensorPlan
from mxconv.conversion.survey import Survey
from mxconv.errors import MxconvError, PackageError
from mxconv.kernels.encoders import decode_bsfp
from mxconv.model.loader import LoadedPackage
from mxconv.progress import Progress, silent
from mxconv.speculative.hierarchy import Hierarchy
from mxconv.speculative.selection import GREEDY, Selection

Status = Literal["bit-exact", "lossy", "mismatch", "missing"]
SLICE_BYTES = 4 << 20


@dataclass(frozen=True)
class TensorVerification:
    """One tensor, rebuilt. `sha256_source` is the recorded one where no source was given."""

    name: str
    codec: str
    status: Status
    sha256_source: str | None
    sha256_reconstructed: str | None
    max_abs_error: float | None
    detail: str = ""


@dataclass(frozen=True)
class Verification:
    """What was checked and found."""

    manifest: Manifest
    tensors: list[TensorVerification]
    damaged_files: list[str]
    source_compared: bool
    decode: DecodeRecord | None = None

    @property
    def num_bit_exact(self) -> int:
        return sum(tensor.status == "bit-exact" for tensor in self.tensors)

    @property
    def lossless(self) -> bool:
        """Whether every tensor was rebuilt bit for bit from this package alone."""
        return self.manifest.lossless and self.num_bit_exact == len(self.tensors)

    @property
    def ok(self) -> bool:
        """Nothing is damaged, missing or other than the manifest says; speculation changed nothing."""
        tensors = all(tensor.status in ("bit-exact", "lossy") for tensor in self.tensors)
        decode = self.decode is None or self.decode.num_token_mismatches + self.decode.num_logit_mismatches == 0
        return tensors and decode and not self.damaged_files

    def certificate(self) -> CertificateRecord:
        return CertificateRecord(
            created_by=f"mxconv {__version__}",
            source_compared=self.source_compared,
            num_tensors=len(self.tensors),
            num_bit_exact=self.num_bit_exact,
            lossless=self.lossless,
            decode=self.decode,
        )


def verify(path: Path, source: Checkpoint | None = None, progress: Progress = silent) -> Verification:
    """Check a package.

    Args:
        path: the package.
        source: what it was converted from; without it the recorded hashes stand for the source.
        progress: told about every file and tensor.

    Raises:
        PackageError: the manifest is damaged, or a file or array is missing or misshapen, so that nothing further
            can be checked.
    """
    manifest = read_manifest(path)
    damaged = damaged_files(path, manifest, progress)
    with Package(path) as package:
        tensors = []
        total = sum(_num_bytes(record) for record in manifest.tensors)
        done = 0
        for record in manifest.tensors:
            if source is not None:
                tensors.append(_verify_with_source(package, record, source))
            elif package.has_target:
                tensors.append(_verify_alone(package, record))
            elif record.codec != "keep":  # only the draft is here; its bytes are what the file's hash says
                tensors.append(TensorVerification(record.name, record.codec, "lossy", record.sha256, None, None))
            done += _num_bytes(record)
            progress("verify", done, total)
        if source is not None:
            known = {record.name for record in manifest.tensors}
            tensors += [
                TensorVerification(name, "none", "missing", None, None, None, "in the source only")
                for name in source.tensors
                if name not in known
            ]
    return Verification(manifest, tensors, damaged, source is not None)


def verify_decoding(
    loaded: LoadedPackage,
    hierarchy: Hierarchy,
    prompts: Iterable[str],
    max_new_tokens: int,
    selection: Selection = GREEDY,
    progress: Progress = silent,
) -> DecodeRecord:
    """Decode every prompt plainly and with drafts; compare tokens, and logits of every emitted position.

    Args:
        loaded: the package.
        hierarchy: of its levels.
        prompts: texts.
        max_new_tokens: for each.
        selection: how tokens are chosen; greedily or coupled, where the promise is the same tokens.
        progress: told about every prompt.

    Raises:
        MxconvError: a prompt cannot be decoded.
    """
    assert selection.sampling is None or selection.accept == "coupled"
    num_tokens = num_token_mismatches = num_logit_mismatches = 0
    prompts = list(prompts)
    plain, stop = Hierarchy(hierarchy.levels[:1]), loaded.tokenizer.eos_token_ids
    for number, prompt in enumerate(prompts, 1):
        ids = loaded.tokenizer.encode(prompt)
        expected, found = (_decode(one, ids, max_new_tokens, stop, selection) for one in (plain, hierarchy))
        num_tokens += len(expected)
        length_difference = abs(len(expected) - len(found))
        pairs = list(zip(expected, found, strict=False))
        num_token_mismatches += length_difference + sum(a[0] != b[0] for a, b in pairs)
        num_logit_mismatches += length_difference + sum(a[1] != b[1] for a, b in pairs)
        progress("decode", number, len(prompts))
    return DecodeRecord(
        num_prompts=len(prompts),
        num_tokens=num_tokens,
        num_token_mismatches=num_token_mismatches,
        num_logit_mismatches=num_logit_mismatches,
    )


def write_certificate(path: Path, verification: Verification) -> None:
    """Store what was found in the manifest.

    Raises:
        PackageError: the verification failed, or the manifest cannot be written.
    """
    if not verification.ok:
        raise PackageError(f"{path}: verification failed; only a good one is written down. Convert again.")
    manifest = verification.manifest.model_copy(update={"certificate": verification.certificate()})
    beside = path / (FILE_NAME + ".new")
    try:
        beside.write_bytes(manifest.to_bytes())
        beside.replace(path / FILE_NAME)
    except OSError as error:
        raise PackageError(f"{path / FILE_NAME}: cannot be written ({error.strerror}). Check permissions.") from error


def _decode(
    hierarchy: Hierarchy, prompt: list[int], max_new_tokens: int, stop_tokens: Collection[int], selection: Selection
) -> list[tuple[int, bytes]]:
    """Each new token with the SHA-256 of the logits that chose it."""
    digests: list[bytes] = []

    def keep(_: int, logits: F32) -> None:
        digests.append(hashlib.sha256(logits.tobytes()).digest())

    generation = hierarchy.generate(prompt, max_new_tokens, stop_tokens, keep, selection)
    return list(zip(generation.token_ids, digests, strict=True))


def _verify_alone(package: Package, record: TensorRecord) -> TensorVerification:
    """Rebuild a tensor and compare its hash with the recorded one."""
    digest = hashlib.sha256()
    try:
        for _, piece in _rebuilt(package, record):
            digest.update(np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data)
    except MxconvError as error:
        return TensorVerification(record.name, record.codec, "mismatch", record.sha256, None, None, str(error))
    found = digest.hexdigest()
    is_exact = found == record.sha256
    return TensorVerification(
        record.name,
        record.codec,
        "bit-exact" if is_exact else _declared_loss(record),
        record.sha256,
        found,
        0.0 if is_exact else None,
    )


def _verify_with_source(package: Package, record: TensorRecord, source: Checkpoint) -> TensorVerification:
    """Rebuild a tensor, compare it with the source bit for bit, and encode the draft again."""
    tensor = source.tensors.get(record.name)
    if tensor is None:
        return TensorVerification(record.name, record.codec, "missing", None, None, None, "not in the source")
    if tensor.shape != tuple(record.shape) or tensor.dtype not in (record.dtype, "F32"):
        detail = f"source has {tensor.dtype} {list(tensor.shape)}, package {record.dtype} {record.shape}"
        return TensorVerification(record.name, record.codec, "mismatch", None, None, None, detail)
    try:
        return _compare(package, record, source)
    except MxconvError as error:
        return TensorVerification(record.name, record.codec, "mismatch", None, None, None, str(error))


def _compare(package: Package, record: TensorRecord, source: Checkpoint) -> TensorVerification:
    survey = _survey_of(record, source)
    rebuilt = hashlib.sha256()
    max_abs_error = 0.0
    if package.has_target:
        for start, piece in _rebuilt(package, record):
            rebuilt.update(np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data)
            original = survey.original(start, start + len(piece)) if record.shape else survey.original()
            max_abs_error = max(max_abs_error, _max_abs_error(piece, original, record.dtype))
    stale: set[str] = set()

    def compare(name: str, offset: int, piece: np.ndarray) -> None:
        stored = package.arrays[name].array().reshape(-1).view(np.uint8)
        if not np.array_equal(stored[offset : offset + piece.nbytes], piece.reshape(-1).view(np.uint8)):
            stale.add(name)

    encoded = encode_tensor(survey, package.manifest.options.scale_rule, compare, copy=False)
    assert encoded.sha256 is not None
    if record.shape:
        package.release(record, 0, record.shape[0])
    found = rebuilt.hexdigest() if package.has_target else encoded.sha256
    status: Status = "bit-exact" if found == encoded.sha256 else _declared_loss(record)
    details = [f"{name} differs from what the source encodes to" for name in sorted(stale)]
    if encoded.sha256 != record.sha256:
        details.append("the source is not the one that was converted")
    return TensorVerification(
        record.name,
        record.codec,
        "mismatch" if details else status,
        encoded.sha256,
        found,
        max_abs_error,
        "; ".join(details),
    )


def _declared_loss(record: TensorRecord) -> Status:
    """A difference is a loss where the manifest declares the tensor rescaled, and a mismatch anywhere else."""
    return "lossy" if record.segments is not None and record.segments.rescale_factor != 1.0 else "mismatch"


def _survey_of(record: TensorRecord, source: Checkpoint) -> Survey:
    """The survey that a conversion of this tensor would have made, taken from its record."""
    tensor = source.tensors[record.name]
    plan = TensorPlan(
        tensor,
        record.codec,
        record.reason,
        FORMATS.get(record.dtype),
        is_cast=tensor.dtype == "F32" and record.dtype != "F32",
    )
    if record.segments is None:
        return Survey(plan)
    table = record.segments.table(record.dtype)
    return Survey(plan, table, record.segments.num_escapes, record.segments.rescale_factor)


def _rebuilt(package: Package, record: TensorRecord) -> Iterator[tuple[int, np.ndarray]]:
    """A tensor as the package has it, in slices of rows: the first row, and 16-bit patterns or what was kept."""
    if not record.shape:
        yield 0, package.kept(record).array()
        return
    num_rows = record.shape[0]
    row_bytes = max(_num_bytes(record) // max(num_rows, 1), 1)
    step = max(SLICE_BYTES // row_bytes // TILE_ROWS, 1) * TILE_ROWS
    stored = package.bsfp(record) if record.codec == "bsfp" else None
    for start in range(0, num_rows, step):
        stop = min(start + step, num_rows)
        if stored is not None:
            yield start, stored.target_rows(start, stop, decode_bsfp)
        else:
            yield start, package.kept(record).rows(start, stop)
        package.release(record, start, stop)


def _max_abs_error(found: np.ndarray, original: np.ndarray, dtype: str) -> float:
    """Largest absolute difference of two slices; infinite where one is not finite and the bits differ."""
    # a legacy checkpoint's rows may be strided, and equal NaNs must count as equal
    found, original = np.ascontiguousarray(found), np.ascontiguousarray(original)
    if np.array_equal(found.view(np.uint8), original.view(np.uint8)):
        return 0.0
    if dtype not in FORMATS:
        return float("inf")
    values = [FORMATS[dtype].decode(array).astype(np.float64) for array in (found, original)]
    differences = np.abs(values[0] - values[1])[found != original]
    return float(differences.max()) if np.isfinite(differences).all() else float("inf")


def _num_bytes(record: TensorRecord) -> int:
    return prod(record.shape) * DTYPES[record.dtype].num_bits // 8 if record.dtype in DTYPES else 0
