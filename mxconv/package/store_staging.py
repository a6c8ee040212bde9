"""A package that grows on an object store, shard by shard.

A worker encodes a whole shard into a scratch folder on its own disk, hashes it and uploads it with fsspec; then it
deletes the scratch file. Workers share no disk, and nothing but files of the package is ever on the store. The manifest
is uploaded last: until then there is no package.

The scratch folder of the machine on which the command runs also holds the journal (`journal.py`). It says which files
this conversion uploads, so that they are known as ours, and what every uploaded shard is: length, SHA-256, the store's
tag, and the SHA-256 of each tensor in it. The next run keeps shards of which nothing has changed.
"""

import hashlib
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from mxconv.checkpoint.hashing import sha256_file
from mxconv.checkpoint.object_store import ObjectLook, Store
from mxconv.checkpoint.regular_file import Look, check_look, check_regular_file
from mxconv.errors import PackageError
from mxconv.package.journal import FILE_NAME as JOURNAL
from mxconv.package.journal import Journal, read_lines
from mxconv.package.manifest import FILE_NAME, FileRecord
from mxconv.package.shard_files import FolderSink, reported
from mxconv.package.shard_layout import Shard, ShardLayout
from mxconv.package.staging import EncodedTensor, PlacedFile, Sink, UploadRecord, Write, Written
from mxconv.progress import Progress
from mxconv.system.disk import reserve, write_at
from mxconv.workers import Advance, ByteCounter, Executor


def scratch_of(target: Store) -> Path:
    """Folder on this machine for a conversion into a store, in the cache of the Hub's client (`HF_HOME`)."""
    from huggingface_hub import cached_assets_path

    key = hashlib.sha256(target.url.encode()).hexdigest()[:16]
    return Path(cached_assets_path("mxconv", "conversions", key))


def check_store(target: Store) -> None:
    """Refuse to write where anything is but what an interrupted conversion of this machine uploaded.

    Raises:
        PackageError: a package is there, or something else, or the URL names a bucket alone.
    """
    if "/" not in target.url.partition("://")[2]:
        raise PackageError(f"{target}: names a bucket; a folder in it is required. Write {target}/FOLDER.")
    looks = target.looks()
    if FILE_NAME in looks:
        raise PackageError(
            f"{target}: a package is there; on a store one cannot be replaced in one step, so --force does not help. "
            "Choose another output, or delete it."
        )
    if foreign := sorted(looks.keys() - _uploads_of(read_lines(scratch_of(target)))):
        raise PackageError(
            f"{target}: holds {foreign[0]}, which no interrupted conversion of this machine uploaded; an empty place "
            "is required. Choose another output, or delete it."
        )


def recover_store(target: Store) -> None:
    """Delete the scratch folder of a finished package: a kill may come right after the manifest."""
    if target.look(FILE_NAME) is not None:
        _delete(scratch_of(target))


class StoreStaging:
    """The growing package of one conversion: see `staging.Staging`."""

    def __init__(self, target: Store, fingerprint: str) -> None:
        """Begin, or resume; what a conversion with another fingerprint uploaded is deleted. `check_store` allows it.

        Raises:
            PackageError: another process converts into the folder, or the store or the disk cannot be written.
        """
        self.target = Store(target.url, PackageError)
        self._folder = scratch_of(target)
        with reported(self._folder, JOURNAL):
            self._journal = Journal(self._folder)
        lines = self._journal.lines
        self.is_resumed = bool(lines) and lines[0].get("fingerprint") == fingerprint
        self._ours = _uploads_of(lines)  # names that we upload or have uploaded
        self._left = {record.path: record for record in map(_upload_of, lines) if record} if self.is_resumed else {}
        if not self.is_resumed:
            try:
                self._delete_uploads()
                self._journal.begin(fingerprint)
            except BaseException:
                self._journal.close()
                raise
            self._ours = set()
        self._lock = threading.Lock()
        self._layout = ShardLayout((), {}, {})
        self._tensors_of: dict[str, list[str]] = {}  # by shard
        self._uploads: dict[str, UploadRecord] = {}  # files of the package that are on the store
        self._hashed: dict[str, str] = {}  # finished tensors and their SHA-256

    def prepare(self, layout: ShardLayout, workers: Executor) -> dict[str, EncodedTensor]:
        """Find the shards that are there, see `Staging.prepare`."""
        self._layout = layout
        owner = {array.name: tensor for tensor, arrays in layout.arrays.items() for array in arrays}
        for shard in layout.shards:
            self._tensors_of[shard.file_name] = list(dict.fromkeys(owner[array] for array in shard.offsets))
        self._claim([shard.file_name for shard in layout.shards])
        looks = self.target.looks() if self._left else {}
        self._left = {name: record for name, record in self._left.items() if record.is_of(looks.get(name))}
        found: dict[str, set[str | None]] = {}  # each tensor's hashes by its shards; None where one is missing
        for name, tensors in self._tensors_of.items():
            record = self._left.get(name)
            for tensor in tensors:
                found.setdefault(tensor, set()).add(record.tensors.get(tensor) if record else None)
        alike = {tensor: hashes.pop() for tensor, hashes in found.items() if len(hashes) == 1}
        return {name: EncodedTensor(name, sha256, {}) for name, sha256 in alike.items() if sha256 is not None}

    def sinks(self, names: Sequence[str]) -> Iterator[tuple[Sink, list[str]]]:
        """The shards that these tensors lie in, each with all of its tensors; last, the tensors that lie in none."""
        wanted, stored = set(names), {tensor for tensors in self._tensors_of.values() for tensor in tensors}
        for shard in self._layout.shards:
            tensors = self._tensors_of[shard.file_name]
            if wanted.isdisjoint(tensors):
                self._uploads[shard.file_name] = self._left[shard.file_name]
                continue
            arrays = {t: [a.name for a in self._layout.arrays[t] if a.name in shard.offsets] for t in tensors}
            yield UploadedShard(self.target, shard, arrays), tensors
        for name in names:
            if name not in stored:
                yield FolderSink(self._folder, "", {}), [name]  # it is only hashed

    def accept(self, written: Written) -> None:
        if written.upload is not None:
            self._uploads[written.upload.path] = written.upload

    def note(self, encoded: EncodedTensor) -> None:
        """A tensor is uploaded and hashed: note the shards whose tensors are all hashed by now."""
        assert encoded.sha256 is not None
        with self._lock:
            self._hashed[encoded.name] = encoded.sha256
            for name, tensors in self._tensors_of.items():
                record = self._uploads.get(name)
                if record is not None and encoded.name in tensors and self._hashed.keys() >= set(tensors):
                    hashes = {tensor: self._hashed[tensor] for tensor in tensors}
                    self._journal.add({"upload": record.model_copy(update={"tensors": hashes}).model_dump()})

    def write_file(self, name: str, content: bytes) -> None:
        self._claim([name])
        self.target.write(name, content)
        sha256 = hashlib.sha256(content).hexdigest()
        self._uploads[name] = UploadRecord(path=name, num_bytes=len(content), sha256=sha256, tag="")

    def place_files(
        self, files: Sequence[PlacedFile], known: Mapping[str, FileRecord], workers: Executor, progress: Progress
    ) -> None:
        """Upload files. Companions are small, and may lie where no other machine sees them: they go from here. A large
        file whose hash is known is not uploaded again.
        """
        self._claim([file.name for file in files])
        for file in files:
            left, record = self._left.get(file.name), known.get(file.name)
            if left is not None and record is not None and left.sha256 == record.sha256:
                self._uploads[file.name] = left
        pieces = []
        for file in files:
            if file.name not in self._uploads:
                path, sha256 = file.source.absolute(), known[file.name].sha256 if file.name in known else None
                pieces.append(FilePiece(path, file.name, check_regular_file(path), sha256))
        advance = ByteCounter("copy", sum(piece.num_bytes for piece in pieces), progress)
        upload = UploadFile(self.target)
        large = {file.name for file in files if file.link}
        for piece in pieces:
            if piece.name not in large:
                self._uploads[piece.name] = upload(piece, advance)
        workers.map(upload, [piece for piece in pieces if piece.name in large], advance, self._note_upload)

    def _note_upload(self, record: UploadRecord) -> None:
        with self._lock:
            self._uploads[record.path] = record
            self._journal.add({"upload": record.model_dump()})

    def records(self, known: Mapping[str, FileRecord], progress: Progress) -> list[FileRecord]:
        """Every file of the package, by name; all were hashed before they were uploaded."""
        uploads = sorted(self._uploads.values(), key=lambda record: record.path.split("/"))
        return [FileRecord(path=u.path, num_bytes=u.num_bytes, sha256=u.sha256) for u in uploads]

    def commit(self, manifest: bytes) -> None:
        """Check every upload, write the manifest, check again, and delete the scratch folder.

        A worker of another conversion that was killed may outlive it and upload its shard late. What it replaced has
        another tag, which one of the checks finds: then there is no manifest, and the next run uploads the shard again.
        """
        looks = self._check_uploads()
        companions = (looks.keys() - self._uploads.keys()) & self._ours  # of an earlier run, where they were others
        self.target.delete(companions)
        self.target.write(FILE_NAME, manifest)
        try:
            self._check_uploads()
        except PackageError:
            self.target.delete([FILE_NAME])
            raise
        self.close()
        _delete(self._folder)

    def _check_uploads(self) -> dict[str, ObjectLook]:
        """All objects of the folder, those that this conversion uploaded as they were then.

        Raises:
            PackageError: one of these is gone, or another one.
        """
        looks = self.target.looks()
        for name, record in self._uploads.items():
            look = looks.get(name)
            if look is None or look.num_bytes != record.num_bytes or record.tag not in ("", look.tag):
                found = "nothing" if look is None else f"{look.num_bytes:,} bytes with tag {look.tag}"
                raise PackageError(
                    f"{self.target.path(name)}: {found}; the {record.num_bytes:,} bytes that were uploaded are "
                    "required. Somebody else changes the package: run the same command again."
                )
        return looks

    def discard(self) -> None:
        self._delete_uploads()
        self.close()
        _delete(self._folder)

    def close(self) -> None:
        """End; what was uploaded stays for a later run."""
        self._journal.close()
        shutil.rmtree(_shards_in(self._folder), ignore_errors=True)

    def _claim(self, names: Sequence[str]) -> None:
        """Note the names of files before any of them is uploaded."""
        if new := [name for name in names if name not in self._ours]:
            self._journal.add({"uploads": new})
            self._ours.update(new)

    def _delete_uploads(self) -> None:
        self.target.delete(self.target.looks().keys() & self._ours)


@dataclass(frozen=True)
class UploadedShard:
    """Takes all arrays of one shard: a file in the scratch folder of whoever encodes them, uploaded at the end."""

    target: Store
    shard: Shard
    names: Mapping[str, Sequence[str]]  # of the arrays of each tensor in this shard

    def arrays(self, tensor: str) -> Sequence[str]:
        return self.names[tensor]

    @contextmanager
    def writing(self) -> Iterator[Write]:
        """A function that writes pieces of the arrays into the scratch file, until the end of the block."""
        folder, shard = self._path.parent, self.shard
        try:
            with reported(folder, shard.file_name):
                folder.mkdir(parents=True, exist_ok=True)
                file = FileIO(self._path, "w+b")
            with file:
                with reported(folder, shard.file_name):
                    reserve(file, shard.num_bytes)
                    write_at(file, shard.header, 0)

                def write(name: str, offset: int, piece: NDArray[np.generic]) -> None:
                    with reported(folder, shard.file_name):
                        write_at(file, piece.reshape(-1).view(np.uint8).data, shard.offsets[name] + offset)

                yield write
        finally:
            self._path.unlink(missing_ok=True)

    def finish(self, tensors: list[EncodedTensor]) -> Written:
        return Written(tensors, upload_file(self.target, self._path, self.shard.file_name))

    @property
    def _path(self) -> Path:
        return _shards_in(scratch_of(self.target)) / self.shard.file_name


class FilePiece(NamedTuple):
    """A file that is uploaded as it is."""

    path: Path  # absolute
    name: str  # in the package
    num_bytes: int
    sha256: str | None  # what it was when it was converted


@dataclass(frozen=True)
class UploadFile:
    """A task: upload a file, and return what it is."""

    target: Store

    def __call__(self, piece: FilePiece, advance: Advance) -> UploadRecord:
        look = Look.at(piece.path)
        record = upload_file(self.target, piece.path, piece.name, piece.sha256)
        check_look(piece.path, look)
        advance(piece.num_bytes)
        return record


def upload_file(target: Store, path: Path, name: str, sha256: str | None = None) -> UploadRecord:
    """Hash a file and upload it.

    Raises:
        PackageError: it cannot be uploaded, or another object is there afterwards.
    """
    num_bytes, sha256 = path.stat().st_size, sha256 or sha256_file(path)
    target.put(path, name)
    look = target.look(name)
    if look is None or look.num_bytes != num_bytes:
        found = "nothing" if look is None else f"{look.num_bytes:,} bytes"
        raise PackageError(
            f"{target.path(name)}: {found} of {num_bytes:,} bytes that were uploaded; somebody else writes there. "
            "Let one conversion at a time write into a folder, and run the same command again."
        )
    return UploadRecord(path=name, num_bytes=num_bytes, sha256=sha256, tag=look.tag)


def _shards_in(scratch: Path) -> Path:
    """Folder of the shards that workers of this machine write; beside the journal, which is the command's alone."""
    return scratch.with_name(scratch.name + ".shards")


def _delete(scratch: Path) -> None:
    for folder in (scratch, _shards_in(scratch)):
        shutil.rmtree(folder, ignore_errors=True)


def _uploads_of(lines: Sequence[dict[str, Any]]) -> set[str]:
    """The names that a conversion noted before it uploaded them."""
    lists = [line["uploads"] for line in lines if isinstance(line.get("uploads"), list)]
    return {name for names in lists for name in names if isinstance(name, str)}


def _upload_of(line: dict[str, Any]) -> UploadRecord | None:
    try:
        return UploadRecord.model_validate(line.get("upload"))
    except ValidationError:
        return None
