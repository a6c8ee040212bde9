"""The folder in which a package grows, beside its target, and the journal that lets a killed conversion go on.

    PACKAGE.partial/                 becomes PACKAGE in one rename
    PACKAGE.partial/.mxconv-journal  see journal.py

A shard's line is written when it is whole and on the disk. On resume it is hashed again, so that even a crash of the
machine, which may keep the line and lose the bytes, is noticed.
"""

import errno
import os
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from mxconv.checkpoint.regular_file import sha256_file
from mxconv.package.growing_shard import (
    ArrayNames,
    ArrayPlace,
    EncodedTensor,
    FinishedShard,
    FolderSink,
    GrowingShard,
    PlacedFile,
    Written,
    reported,
)
from mxconv.package.journal import FILE_NAME as JOURNAL
from mxconv.package.journal import Journal
from mxconv.package.manifest import FILE_NAME, FileRecord
from mxconv.package.shard_layout import ShardLayout
from mxconv.progress import Progress
from mxconv.system.disk import RENAMES_OPEN_FILES, flush_file, flush_folder, named, put_in_place, remove
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
        self._fingerprint = fingerprint
        self._layout = ShardLayout((), {}, {})
        self._shards: dict[str, GrowingShard] = {}
        self._records: dict[str, FileRecord] = {}  # of the shards that are whole
        with self._reported(JOURNAL):
            self._journal = Journal(self.path)
        lines = self._journal.lines
        self._lines = lines[1:] if lines and lines[0].get("fingerprint") == fingerprint else None
        if self._lines is None:
            try:
                with self._reported(JOURNAL):
                    self._keep_only(set())
                    self._journal.begin(fingerprint)
            except BaseException:
                self.close()
                raise

    def finished(self, layout: ShardLayout, workers: Executor) -> list[FinishedShard]:
        """The shards that an earlier run of the same conversion finished, their bytes checked; whether the source still
        holds the same weights is for the caller to find out."""
        with self._reported("the package"):  # companions and drafts may have changed since
            self._keep_only({shard.file_name for shard in layout.shards})
        tensors = layout.tensors
        noted = {shard.file.path: shard for line in self._lines or [] if (shard := _parse(line)) is not None}
        claimed = [
            line
            for shard in layout.shards
            if (line := noted.get(shard.file_name)) is not None
            and line.file.num_bytes == shard.num_bytes
            and {encoded.name for encoded in line.tensors} == tensors[shard.file_name].keys()
        ]
        paths = [self.path.absolute() / shard.file.path for shard in claimed]
        there = [path for path in paths if path.is_file()]
        sha256s = dict(zip(there, workers.map(sha256_file, there), strict=True))
        return [shard for shard, path in zip(claimed, paths, strict=True) if sha256s.get(path) == shard.file.sha256]

    def begin(self, layout: ShardLayout, finished: Sequence[FinishedShard]) -> None:
        """Lay out the shards but those that an earlier run finished."""
        self._layout, tensors = layout, layout.tensors
        self._records = {shard.file.path: shard.file for shard in finished}
        self._shards = {
            shard.file_name: GrowingShard(shard, self.path, tensors[shard.file_name])
            for shard in layout.shards
            if shard.file_name not in self._records
        }

    def sinks(self) -> Iterator[tuple[FolderSink, ArrayNames]]:
        """Where the arrays go that are still to be written: one sink a tensor."""
        at = {name: ArrayPlace(shard.file_name, begin) for name, (shard, begin) in self._layout.places.items()}
        for tensor, arrays in self._layout.arrays.items():
            names = (array.name for array in arrays)
            places = {name: at[name] for name in names if at[name].file_name in self._shards}
            if places:
                yield FolderSink(self.path.absolute(), places, self._fingerprint), {tensor: list(places)}

    def accept(self, written: Written) -> None:
        """Take arrays as written; the next run need not do a shard again that is whole now."""
        for encoded in written.tensors:
            for shard in self._shards.values():
                if (finished := shard.finish(encoded)) is not None:
                    self._note(finished)

    def _note(self, finished: FinishedShard) -> None:
        tensors = {each.name: [each.sha256, each.arrays] for each in finished.tensors}
        with self._lock, self._reported(JOURNAL):
            self._records[finished.file.path] = finished.file
            self._journal.add({"shard": finished.file.model_dump(), "tensors": tensors})

    def records(self, known: Mapping[str, FileRecord], progress: Progress) -> list[FileRecord]:
        """Every file of the package, with its hash, by name; `known` are those whose hash is known."""
        known = {**known, **self._records}
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
        """Write a whole small file."""
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
        """Close the journal; what was written stays for a later run."""
        self._journal.close()

    def _keep_only(self, names: set[str]) -> None:
        """Delete everything in the folder but the journal and these files."""
        for path in self.path.iterdir():
            if path.name not in {JOURNAL, *names}:
                remove(path)

    def _reported(self, name: str) -> AbstractContextManager[None]:
        return reported(self.path, name)


def _parse(line: dict[str, Any]) -> FinishedShard | None:
    try:
        tensors = [EncodedTensor(name, sha256, dict(arrays)) for name, (sha256, arrays) in line["tensors"].items()]
        return FinishedShard(FileRecord.model_validate(line["shard"]), tensors)
    except (LookupError, TypeError, ValueError, AttributeError):
        return None
