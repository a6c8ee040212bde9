"""The folder in which a package grows, beside its target, and the journal that lets a killed conversion go on.

    PACKAGE.partial/                 becomes PACKAGE in one rename
    PACKAGE.partial/.mxconv-journal  see journal.py

A tensor's line is written only after its arrays are, with their checksums. On resume the arrays of finished tensors
are read again, so that even a crash of the machine, which may keep the line and lose the bytes, is noticed.
"""

import errno
import os
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from io import FileIO
from pathlib import Path
from typing import Any

from mxconv.checkpoint.hashing import sha256_file
from mxconv.package.folder_target import named, put_in_place, remove
from mxconv.package.journal import FILE_NAME as JOURNAL
from mxconv.package.journal import Journal
from mxconv.package.manifest import FILE_NAME, FileRecord
from mxconv.package.shard_files import ArrayPlaces, CheckIntact, FolderSink, ShardHash, array_places, reported
from mxconv.package.shard_layout import Shard, ShardLayout
from mxconv.package.staging import EncodedTensor, PlacedFile, Sink, Written
from mxconv.progress import Progress
from mxconv.system.disk import RENAMES_OPEN_FILES, flush_file, flush_folder, reserve, write_at
from mxconv.workers import ByteCounter, Executor

NO_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EACCES, errno.EINVAL)  # the last on Windows


class FolderStaging:
    """The partial folder of one conversion."""

    def __init__(self, target: Path, fingerprint: str) -> None:
        """Open or create the folder beside the package's final path.

        A folder that another fingerprint (of the options and the source files' names) left is started over.

        Raises:
            PackageError: something else is at the partial path, another process writes there, or it cannot be written.
        """
        self.target = named(target)
        self.path = self.target.with_name(self.target.name + ".partial")
        self._lock = threading.Lock()
        self._files: dict[str, FileIO] = {}
        self._hashes: list[ShardHash] = []
        self._fingerprint = fingerprint
        self._places: dict[str, ArrayPlaces] = {}  # of each tensor's arrays
        with self._reported(JOURNAL):
            self._journal = Journal(self.path)
        lines = self._journal.lines
        self.is_resumed = bool(lines) and lines[0].get("fingerprint") == fingerprint
        self._finished = lines[1:] if self.is_resumed else []
        if not self.is_resumed:
            try:
                with self._reported(JOURNAL):
                    self._keep_only(set())
                    self._journal.begin(fingerprint)
            except BaseException:
                self.close()
                raise

    def prepare(self, layout: ShardLayout, workers: Executor) -> dict[str, EncodedTensor]:
        """Lay out the shards at full length: a full disk is noticed here, not hours later. See `Staging.prepare`."""
        with self._reported("the package"):  # companions and drafts may have changed since
            self._keep_only({shard.file_name for shard in layout.shards})
        for shard in layout.shards:
            with self._reported(shard.file_name):
                self._open(shard)
            self._hashes.append(ShardHash(shard, self.path))
            workers.add_stream(self._hashes[-1])
        self._places = array_places(layout)
        noted = {encoded.name: encoded for line in self._finished if (encoded := _parse_finished(line)) is not None}
        pieces = [(encoded, self._places.get(name, {})) for name, encoded in noted.items()]
        intact = workers.map(CheckIntact(self.path.absolute()), pieces)
        return {encoded.name: encoded for (encoded, _), is_intact in zip(pieces, intact, strict=True) if is_intact}

    def sinks(self, names: Sequence[str]) -> Iterator[tuple[Sink, list[str]]]:
        """Where the arrays of these tensors go, one after another."""
        for name in names:
            yield FolderSink(self.path.absolute(), self._fingerprint, self._places.get(name, {})), [name]

    def accept(self, written: Written) -> None:
        for encoded in written.tensors:
            for shard_hash in self._hashes:
                shard_hash.complete(self._places.get(encoded.name, {}).keys())  # of empty ones nothing is written

    def note(self, encoded: EncodedTensor) -> None:
        line = {"tensor": encoded.name, "sha256": encoded.sha256, "arrays": encoded.arrays}
        with self._lock, self._reported(JOURNAL):
            self._journal.add(line)

    def records(self, known: Mapping[str, FileRecord], progress: Progress) -> list[FileRecord]:
        shards = {h.name: FileRecord(path=h.name, num_bytes=h.shard.num_bytes, sha256=h.report()) for h in self._hashes}
        known = {**known, **shards}
        paths = sorted(path for path in self.path.rglob("*") if path.is_file() and not path.name.startswith("."))
        names = {path.relative_to(self.path).as_posix(): path for path in paths}
        names.pop(FILE_NAME, None)  # of a run that was killed just before the rename
        advance = ByteCounter("hash package", sum(path.stat().st_size for path in names.values()), progress)
        records = []
        for name, path in names.items():
            if name in known:
                advance(known[name].num_bytes)
                records.append(known[name])
            else:
                digest = sha256_file(path, advance)
                records.append(FileRecord(path=name, num_bytes=path.stat().st_size, sha256=digest))
        return records

    def write_file(self, name: str, content: bytes) -> None:
        path = self.path / name
        with self._reported(name):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    def place_files(
        self, files: Sequence[PlacedFile], known: Mapping[str, FileRecord], workers: Executor, progress: Progress
    ) -> None:
        """Put copies of files into the package, as hard links where that is wanted and possible."""
        for file in files:
            self._place(file)

    def _place(self, file: PlacedFile) -> None:
        path = self.path / file.name
        with self._reported(file.name):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            if file.link:
                try:
                    os.link(file.source.resolve(), path)
                    return
                except OSError as error:
                    if error.errno not in NO_LINK:
                        raise
            shutil.copyfile(file.source, path)

    def commit(self, manifest: bytes) -> None:
        """Write the manifest, make everything durable, and put the folder in its place."""
        self.write_file(FILE_NAME, manifest)
        with self._reported("the package"):
            for file in self._files.values():
                os.fsync(file.fileno())
            flush_file(self.path / FILE_NAME)
            flush_folder(self.path)
            if not RENAMES_OPEN_FILES:  # whoever takes the lock in this moment gets the folder, and we an error
                self.close()
            put_in_place(self.path, self.target)
            (self.target / JOURNAL).unlink(missing_ok=True)
            self.close()

    def discard(self) -> None:
        """Delete the partial folder."""
        with self._reported("the package"):
            self._keep_only(set())
            (self.path / JOURNAL).unlink()
            self.close()
            self.path.rmdir()

    def close(self) -> None:
        """Close the shards and the journal; what was written stays for a later run."""
        for file in self._files.values():
            file.close()
        self._files = {}
        self._journal.close()

    def _open(self, shard: Shard) -> None:
        path = self.path / shard.file_name
        path.touch()
        file = path.open("r+b", buffering=0)
        self._files[shard.file_name] = file
        reserve(file, shard.num_bytes)
        write_at(file, shard.header, 0)

    def _keep_only(self, names: set[str]) -> None:
        """Delete everything in the folder but the journal and these files."""
        for path in self.path.iterdir():
            if path.name not in {JOURNAL, *names}:
                remove(path)

    def _reported(self, name: str) -> AbstractContextManager[None]:
        return reported(self.path, name)


def _parse_finished(line: dict[str, Any]) -> EncodedTensor | None:
    name, sha256, arrays = line.get("tensor"), line.get("sha256"), line.get("arrays")
    if isinstance(name, str) and isinstance(sha256, str) and isinstance(arrays, dict):
        return EncodedTensor(name, sha256, arrays)
    return None
