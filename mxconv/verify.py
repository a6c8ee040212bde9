"""Proof instead of a claim: is the package whole, is every weight the source's, does speculation change a single bit?

    verification = verify(Path("package"), source=checkpoint)

Files are hashed, every tensor that the package has is taken out of it and compared bit for bit, every draft tensor is
encoded again from the source and compared code for code; docs/verify.md says what counts as what.
`mxconv.verification.decode_proof` runs prompts with and without drafts and compares tokens and logits.
"""

import shlex
from dataclasses import dataclass
from pathlib import Path

from mxconv import __version__
from mxconv.checkpoint.regular_file import sha256_file
from mxconv.checkpoint.safetensors_header import shown
from mxconv.checkpoint.source import Checkpoint
from mxconv.engine.stored_weights import package_faults
from mxconv.errors import PackageError
from mxconv.package.manifest import CertificateRecord, DecodeRecord, Manifest, read_manifest, replace_manifest
from mxconv.package.package import Package
from mxconv.package.package_folder import files_to_hash
from mxconv.progress import Progress, silent
from mxconv.verification.tensor_proof import TensorVerification, VerifyPiece, VerifyTensor, num_bytes_of
from mxconv.workers import ByteCounter, Executor, Workers, beside


@dataclass(frozen=True)
class Verification:
    """The result of checking a package."""

    manifest: Manifest
    tensors: list[TensorVerification]
    damaged_files: list[str]
    source_compared: bool
    decode: DecodeRecord | None = None

    @property
    def num_bit_exact(self) -> int:
        """The number of tensors whose bytes came out of the package, were hashed, and are the source's."""
        return sum(tensor.status == "bit-exact" for tensor in self.tensors)

    @property
    def num_rebuilt(self) -> int:
        """The same: nothing is called bit-exact but bytes that the package gave."""
        return self.num_bit_exact

    @property
    def num_derived(self) -> int:
        """The number of tensors whose draft's codes were encoded again from the source, and are equal."""
        return sum(tensor.is_derived and tensor.status != "mismatch" for tensor in self.tensors)

    @property
    def num_kept(self) -> int:
        """The number of tensors that are stored as they are, or that stay in the source."""
        return sum(tensor.is_kept and tensor.status in ("bit-exact", "kept") for tensor in self.tensors)

    @property
    def has_nothing_to_compare(self) -> bool:
        """Whether neither the package nor the caller has the target's weights: only files were hashed."""
        return not self.source_compared and self.manifest.levels[0].location == "source"

    @property
    def proof(self) -> str:
        """One sentence on what was proven of the tensors, or on what to give where nothing could be."""
        source = self.manifest.source
        if not self.has_nothing_to_compare:
            return self.certificate().proof
        revision = "" if source.commit is None else f" --revision {shlex.quote(source.commit)}"
        return (
            "nothing to rebuild here: the package references its target, and only the hashes of its files were "
            f"compared. To derive the draft's codes again, give --source {shlex.quote(source.id)}{revision}"
        )

    @property
    def given_note(self) -> str | None:
        """One sentence on draft tensors whose codes nothing was compared with; None where all were cast."""
        given = self.manifest.draft_weights
        if given is None or not given.tensors:
            return None
        rule = shown(given.description.get("rule"))
        return (
            f"The codes of {len(given.tensors)} draft tensors were given ({rule}): no source encodes "
            "to them, and only the hash of their file speaks for them. The target does not depend on them."
        )

    @property
    def lossless(self) -> bool:
        """Whether every tensor came bit for bit out of this package alone."""
        return self.manifest.lossless and self.num_bit_exact == len(self.tensors)

    @property
    def ok(self) -> bool:
        """Nothing is damaged, missing or other than the manifest says; speculation changed nothing."""
        tensors = all(tensor.status not in ("mismatch", "missing") for tensor in self.tensors)
        decode = self.decode is None or self.decode.num_token_mismatches + self.decode.num_logit_mismatches == 0
        return tensors and decode and not self.damaged_files

    def certificate(self) -> CertificateRecord:
        return CertificateRecord(
            created_by=f"mxconv {__version__}",
            source_compared=self.source_compared,
            num_tensors=len(self.tensors),
            num_bit_exact=self.num_bit_exact,
            num_rebuilt=self.num_rebuilt,
            num_derived=self.num_derived,
            num_kept=self.num_kept,
            lossless=self.lossless,
            decode=self.decode,
        )


def verify(
    path: Path,
    source: Checkpoint | None = None,
    progress: Progress = silent,
    num_threads: int = 1,
    executor: Executor | None = None,
) -> Verification:
    """Check a package: tensors side by side, and beside them the hashes of its files.

    Args:
        path: the package.
        source: what it was converted from; without it the recorded hashes count.
        progress: told about every file and tensor.
        num_threads: of the threads that do the work, unless there is an executor; what is found does not depend on it.
        executor: who does the work.

    Raises:
        PackageError: the manifest is damaged, or a file or array is missing or misshapen, so that nothing further
            can be checked.
    """
    manifest = read_manifest(path)
    workers = executor or Workers(num_threads)
    if source is not None:
        source.show_downloads(progress)
    advance = ByteCounter("hash package", sum(record.num_bytes for record in manifest.files), progress)
    files = dict(zip(manifest.files, files_to_hash(path, manifest.files, advance), strict=True))
    whole = {record: file for record, file in files.items() if file is not None}
    with beside(workers, sha256_file, list(whole.values()), advance) as hashes:
        with Package(path) as package:
            tensors = _verify_tensors(package, source, workers, progress)
            tensors += [
                TensorVerification(name, "keep", "missing", detail=fault) for name, fault in package_faults(package)
            ]
        sha256s = dict(zip(whole, hashes.result(), strict=True))
    damaged = [record.path for record in files if sha256s.get(record) != record.sha256]
    return Verification(manifest, tensors, damaged, source is not None)


def _verify_tensors(
    package: Package, source: Checkpoint | None, workers: Executor, progress: Progress
) -> list[TensorVerification]:
    records = package.manifest.tensors
    advance = ByteCounter("verify", sum(num_bytes_of(record) for record in records), progress)
    if source is not None:  # in the order of its files
        records = sorted(records, key=lambda each: t.rank if (t := source.tensors.get(each.name)) else 0)
    pieces = [VerifyPiece.of(record, None if source is None else source.tensors) for record in records]
    found = workers.map(VerifyTensor(package), pieces, advance)
    tensors = sorted((tensor for tensor in found if tensor is not None), key=lambda tensor: tensor.name)
    if source is None:
        return tensors
    known = {record.name for record in records}
    unknown = [name for name in source.tensors if name not in known]
    return tensors + [TensorVerification(name, "none", "missing", detail="in the source only") for name in unknown]


def write_certificate(path: Path, verification: Verification) -> None:
    """Store what was found in the manifest.

    Raises:
        PackageError: the verification failed, or the manifest cannot be written.
    """
    if not verification.ok:
        raise PackageError(f"{path}: verification failed; only a good one is written down. Convert again.")
    replace_manifest(path, verification.manifest.model_copy(update={"certificate": verification.certificate()}))
