"""Where a package goes and grows: a folder (`folder_staging.py`), or a folder on an object store, shard by shard.

On a store a worker encodes a whole shard into a scratch file on its own disk, hashes it, uploads it with fsspec and
deletes it. Workers share no disk. The manifest is uploaded last: until then there is no package. A conversion that ends
without one deletes what it uploaded.
"""

import hashlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from mxconv.checkpoint.object_store import Store, is_store_url, parse_store_url
from mxconv.checkpoint.regular_file import Look, check_look, check_regular_file, sha256_file
from mxconv.checkpoint.source import Checkpoint
from mxconv.errors import MxconvError, PackageError
from mxconv.package.folder_staging import FolderStaging
from mxconv.package.growing_shard import (
    ArrayNames,
    ArrayPlace,
    Encode,
    FinishedShard,
    FolderSink,
    GrowingShard,
    PlacedFile,
    Written,
    reported,
)
from mxconv.package.manifest import FILE_NAME, FileRecord
from mxconv.package.shard_layout import Shard, ShardLayout
from mxconv.progress import Progress
from mxconv.system.disk import check_folder
from mxconv.workers import Advance, ByteCounter, Executor


def check_store(target: Store) -> None:
    """Refuse to write where anything is.

    Raises:
        PackageError: a package is there, or something else, or the URL names a bucket alone.
    """
    if "/" not in target.url.partition("://")[2]:
        raise PackageError(f"{target}: names a bucket; a folder in it is required. Write {target}/FOLDER.")
    names = target.looks().keys()
    if FILE_NAME in names:
        raise PackageError(
            f"{target}: a package is there; on a store one cannot be replaced in one step, so --force does not help. "
            "Choose another output, or delete it."
        )
    if names:
        raise PackageError(
            f"{target}: holds {min(names)}; an empty place is required. Choose another output, or delete what is there "
            "(a conversion that was killed leaves shards without a manifest)."
        )


class StoreStaging:
    """The growing package of one conversion; its methods are those of `FolderStaging`."""

    def __init__(self, target: Store) -> None:
        """Begin in a folder that `check_store` found empty."""
        self.target = Store(target.url, PackageError)
        self._layout = ShardLayout((), {}, {})
        self._uploads: dict[str, FileRecord] = {}  # files of the package that are on the store
        self._names: set[str] = set()  # of these, and of what may be on its way there
        self._is_complete = False

    def finished(self, layout: ShardLayout, workers: Executor) -> list[FinishedShard]:
        """None: nothing is there."""
        return []

    def begin(self, layout: ShardLayout, finished: Sequence[FinishedShard]) -> None:
        self._layout = layout
        self._names.update(shard.file_name for shard in layout.shards)

    def sinks(self) -> Iterator[tuple["UploadedShard", ArrayNames]]:
        """One sink a shard."""
        tensors = self._layout.tensors
        for shard in self._layout.shards:
            yield UploadedShard(self.target, shard, tensors[shard.file_name]), tensors[shard.file_name]

    def accept(self, written: Written) -> None:
        if written.upload is not None:
            self._uploads[written.upload.path] = written.upload

    def write_file(self, name: str, content: bytes) -> None:
        self._names.add(name)
        self.target.write(name, content)
        sha256 = hashlib.sha256(content).hexdigest()
        self._uploads[name] = FileRecord(path=name, num_bytes=len(content), sha256=sha256)

    def place_files(
        self, files: Sequence[PlacedFile], known: Mapping[str, FileRecord], workers: Executor, progress: Progress
    ) -> None:
        """Upload files. Companions are small, and may lie where no other machine sees them: they go from here."""
        self._names.update(file.name for file in files)
        pieces = [
            FilePiece(file.source.absolute(), file.name, check_regular_file(file.source), known.get(file.name))
            for file in files
        ]
        advance = ByteCounter("copy", sum(piece.num_bytes for piece in pieces), progress)
        upload, large = UploadFile(self.target), {file.name for file in files if file.link}
        records = [upload(piece, advance) for piece in pieces if piece.name not in large]
        records += workers.map(upload, [piece for piece in pieces if piece.name in large], advance)
        self._uploads |= {record.path: record for record in records}

    def records(self, known: Mapping[str, FileRecord], progress: Progress) -> list[FileRecord]:
        """Every file of the package, by name; all were hashed before they were uploaded."""
        return sorted(self._uploads.values(), key=lambda record: record.path.split("/"))

    def commit(self, manifest: bytes) -> None:
        """Write the manifest; raises PackageError where the folder holds anything but what was uploaded."""
        found = {name: look.num_bytes for name, look in self.target.looks().items()}
        uploads = {name: record.num_bytes for name, record in self._uploads.items()}
        if differing := sorted(name for name in {*found, *uploads} if found.get(name) != uploads.get(name)):
            name = differing[0]
            raise PackageError(
                f"{self.target.path(name)}: {found.get(name, 'no')} bytes; {uploads.get(name, 'none')} were uploaded. "
                "Somebody else writes there: let one conversion at a time write into a folder, and run it again."
            )
        self.target.write(FILE_NAME, manifest)
        self._is_complete = True

    def discard(self) -> None:
        pass

    def close(self) -> None:
        """End; without a manifest, what was uploaded is deleted where the store still answers."""
        if not self._is_complete:
            with suppress(MxconvError):
                self.target.delete(self.target.looks().keys() & self._names)
        shutil.rmtree(scratch_of(self.target), ignore_errors=True)


@dataclass(frozen=True)
class UploadedShard:
    """Takes all arrays of one shard: a file in the scratch folder of whoever encodes them, uploaded at the end."""

    target: Store
    shard: Shard
    tensors: ArrayNames

    def take(self, encode: Encode) -> Written:
        """Have the arrays written into the scratch file, and upload it."""
        folder, name = scratch_of(self.target), self.shard.file_name
        with reported(folder, name):
            folder.mkdir(parents=True, exist_ok=True)
        try:
            growing = GrowingShard(self.shard, folder, self.tensors)
            places = {array: ArrayPlace(name, begin) for array, begin in self.shard.offsets.items()}
            tensors = FolderSink(folder, places).take(encode).tensors
            (finished,) = filter(None, [growing.finish(encoded) for encoded in tensors])
            self.target.put(folder / name, name)
            return Written(tensors, finished.file)
        finally:
            (folder / name).unlink(missing_ok=True)


class FilePiece(NamedTuple):
    """A file that is uploaded as it is."""

    path: Path  # absolute
    name: str  # in the package
    num_bytes: int
    record: FileRecord | None  # what it was when it was converted


@dataclass(frozen=True)
class UploadFile:
    """A task: upload a file, and return what it is."""

    target: Store

    def __call__(self, piece: FilePiece, advance: Advance) -> FileRecord:
        look = Look.at(piece.path)
        record = upload_file(self.target, piece.path, piece.name, piece.record.sha256 if piece.record else None)
        check_look(piece.path, look)
        advance(piece.num_bytes)
        return record


def upload_file(target: Store, path: Path, name: str, sha256: str | None = None) -> FileRecord:
    """Hash a file and upload it; raises PackageError where that is not possible."""
    record = FileRecord(path=name, num_bytes=path.stat().st_size, sha256=sha256 or sha256_file(path))
    target.put(path, name)
    return record


def scratch_of(target: Store) -> Path:
    """Folder on this machine for shards of a package on a store, in the cache of the Hub's client (`HF_HOME`)."""
    from huggingface_hub import cached_assets_path

    key = hashlib.sha256(target.url.encode()).hexdigest()[:16]
    return Path(cached_assets_path("mxconv", "conversions", key))


Target = Path | Store

Staging = FolderStaging | StoreStaging
"""The growing package of one conversion: tensors are encoded in any order, by any process."""

Sink = FolderSink | UploadedShard
"""Takes the arrays of some tensors; it can be sent to another process."""


def parse_target(text: str) -> Target:
    """The target that `--output` names.

    Raises:
        PackageError: a package cannot be written there.
        MxconvError: no such protocol, or the package that speaks it is not installed.
    """
    if not is_store_url(text):
        return Path(text)
    protocol, url = parse_store_url(text)
    if protocol == "hf":
        raise PackageError(
            f"{url}: packages are not written to the Hub while they grow; a folder, or a store as s3://BUCKET/FOLDER, "
            "is required. Convert into a folder, and send it with `mxconv push`."
        )
    if protocol == "memory":
        raise PackageError(f"{url}: ends with this command; a folder or a store is required. Choose another output.")
    return Store(url, PackageError)


def check_target(target: Target, force: bool) -> None:
    """Refuse to overwrite anything but a package in a folder, and that only with --force.

    Raises:
        PackageError: something is there.
    """
    if isinstance(target, Store):
        check_store(target)
    else:
        check_folder(target, FILE_NAME, "package", force)


def open_staging(target: Target, fingerprint: str) -> Staging:
    """Begin the package, or go on with it.

    Raises:
        PackageError: something else is in the way, or it cannot be written.
    """
    return StoreStaging(target) if isinstance(target, Store) else FolderStaging(target, fingerprint)


def check_apart(checkpoint: Checkpoint, target: Target) -> None:
    """Refuse to replace the folder that is being read.

    Raises:
        PackageError: weights lie in it.
    """
    if isinstance(target, Store):
        source = parse_store_url(checkpoint.id)[1] if is_store_url(checkpoint.id) else ""
        inside = [source] if f"{source}/".startswith(f"{target}/") else []
    else:
        folder = target.resolve()
        inside = [path.name for path in checkpoint.weight_files if path.resolve().is_relative_to(folder)]
    if inside:
        raise PackageError(
            f"{target}: holds {inside[0]}, which is being converted; source and package must be apart. "
            "Choose another output."
        )
