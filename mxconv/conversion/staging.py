"""The folder in which a package grows, beside its target, and the journal that lets a killed conversion go on.

    PACKAGE.partial/                 becomes PACKAGE in one rename
    PACKAGE.partial/.mxconv-journal  see journal.py

A tensor's line is written only after its arrays are, with their checksums. On resume the arrays of finished tensors
are read again, so that even a crash of the machine, which may keep the line and lose the bytes, is noticed.
"""

import errno
import hashlib
import json
import os
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from io import FileIO
from pathlib import Path
from typing import Any

from mxconv.checkpoint.manifest import FILE_NAME, FileRecord
from mxconv.checkpoint.stored import StoredArray
from mxconv.conversion.encode import EncodedTensor
from mxconv.conversion.executor import Executor
from mxconv.conversion.journal import FILE_NAME as JOURNAL
from mxconv.conversion.journal import Journal
from mxconv.conversion.layout import Layout, Shard
from mxconv.conversion.replaced import check_aside, delete_old, recover, remove, step_aside
from mxconv.conversion.shard_hash import ShardHash
from mxconv.conversion.staged_shards import CheckIntact, Place, Places, StagedShards, reported
from mxconv.errors import PackageError
from mxconv.system.disk import RENAMES_OPEN_FILES, flush_file, flush_folder, reserve
from mxconv.system.positional import write_at

NO_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EACCES, errno.EINVAL)  # the last on Windows


class Staging:
    """The partial folder of one conversion."""

    def __init__(self, target: Path, fingerprint: str) -> None:
        """Open or create the folder.

        Args:
            target: the package's final path.
            fingerprint: of the options and the source files' names; a partial folder with another one is started over.

        Raises:
            PackageError: something else stands at the partial path, another process writes there, or it cannot be
                written.
        """
        self.target = _named(target)
        self.path = self.target.with_name(self.target.name + ".partial")
        self._lock = threading.Lock()
        self._files: dict[str, FileIO] = {}
        self._hashes: list[ShardHash] = []
        self._arrays: Mapping[str, tuple[StoredArray, ...]] = {}
        self.shards = StagedShards(self.path.absolute(), fingerprint)
        self.places: dict[str, Places] = {}  # of each tensor's arrays
        with self._reported(JOURNAL):
            self._journal = Journal(self.path)
        lines = self._journal.lines
        self.is_resumed = bool(lines) and lines[0].get("fingerprint") == fingerprint
        self._finished = lines[1:] if self.is_resumed else []
        if not self.is_resumed:
            with self._closing_on_error(), self._reported(JOURNAL):
                self._keep_only(set())
                self._journal.begin(fingerprint)

    def prepare(self, layout: Layout, workers: Executor) -> dict[str, EncodedTensor]:
        """Lay out the shards at full length; a full disk is noticed here, not hours later.

        Args:
            layout: what will be written.
            workers: to whom the hashing of the shards is handed.

        Returns:
            The tensors that an earlier run finished, their bytes checked. Whether the source still holds the same
            weights is for the caller to find out.
        """
        self._arrays = layout.arrays
        with self._reported("the package"):  # companions and drafts may have changed since
            self._keep_only({shard.file_name for shard in layout.shards})
        for shard in layout.shards:
            with self._reported(shard.file_name):
                self._open(shard)
            self._hashes.append(ShardHash(shard, self.path))
            workers.add_stream(self._hashes[-1])
        self.places = _places(layout)
        noted = {encoded.name: encoded for line in self._finished if (encoded := _parse_finished(line)) is not None}
        pieces = [(encoded, self.places.get(name, {})) for name, encoded in noted.items()]
        intact = workers.map(CheckIntact(self.shards), pieces)
        return {encoded.name: encoded for (encoded, _), is_intact in zip(pieces, intact, strict=True) if is_intact}

    def accept(self, encoded: EncodedTensor) -> None:
        """Take the arrays of a tensor as written, now or by an earlier run."""
        names = [array.name for array in self._arrays.get(encoded.name, ())]  # empty ones are never written
        for shard_hash in self._hashes:
            shard_hash.complete(names)

    def note(self, encoded: EncodedTensor) -> None:
        """Note in the journal that a tensor is written and hashed."""
        line = {"tensor": encoded.name, "sha256": encoded.sha256, "arrays": encoded.arrays}
        with self._lock, self._reported(JOURNAL):
            self._journal.add(line)

    def shard_records(self) -> list[FileRecord]:
        """Lengths and hashes of the shards; the workers have finished their streams."""
        return [
            FileRecord(path=h.shard.file_name, num_bytes=h.shard.num_bytes, sha256=h.hexdigest()) for h in self._hashes
        ]

    def write_file(self, name: str, content: bytes) -> None:
        """Write a whole small file."""
        path = self.path / name
        with self._reported(name):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    def place_file(self, name: str, source: Path, *, link: bool) -> None:
        """Put a copy of a file into the package, as a hard link where that is wanted and possible."""
        path = self.path / name
        with self._reported(name):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            if link:
                try:
                    os.link(source.resolve(), path)
                    return
                except OSError as error:
                    if error.errno not in NO_LINK:
                        raise
            shutil.copyfile(source, path)

    def commit(self, manifest: bytes, force: bool) -> None:
        """Write the manifest, make everything durable, and put the folder in its place."""
        self.write_file(FILE_NAME, manifest)
        with self._reported("the package"):
            for file in self._files.values():
                os.fsync(file.fileno())
            flush_file(self.path / FILE_NAME)
            flush_folder(self.path)
            if self.target.exists() and force:
                step_aside(self.target)
            if not RENAMES_OPEN_FILES:  # whoever takes the lock in this moment gets the folder, and we an error
                self.close()
            self.path.rename(self.target)
            flush_folder(self.target.parent)
            (self.target / JOURNAL).unlink(missing_ok=True)
            delete_old(self.target)
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

    @contextmanager
    def _closing_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.close()
            raise

    def _reported(self, name: str) -> AbstractContextManager[None]:
        return reported(self.path, name)


def fingerprint(*parts: object) -> str:
    """SHA-256 over the JSON of everything that decides the bytes of a package."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def recover_target(target: Path) -> None:
    """Finish a replacement that a kill interrupted.

    Raises:
        PackageError: the system does not allow it.
    """
    target = _named(target)
    try:
        recover(target)
    except OSError as error:
        raise PackageError(
            f"{target}: an interrupted replacement cannot be finished ({error.strerror or error}); the old package is "
            f"to be found at {target}.replaced. Move it back, or delete it."
        ) from error


def check_target(target: Path, force: bool) -> None:
    """Refuse to overwrite anything but a package, and that only with --force.

    Raises:
        PackageError: the path exists, or, with --force, something stands where the old package has to wait.
    """
    if not os.path.lexists(target):
        return
    if not force:
        raise PackageError(f"{target}: exists; nothing is overwritten. Choose another output, or use --force.")
    if target.is_symlink() or not target.is_dir() or not (target / FILE_NAME).is_file():
        raise PackageError(
            f"{target}: exists and is no package; --force replaces packages only. Choose another output, or remove it."
        )
    check_aside(_named(target))


def _named(target: Path) -> Path:
    """The path with a last name to append to, which "." and ".." are not."""
    return target if target.name not in ("", "..") else target.resolve()


def _places(layout: Layout) -> dict[str, Places]:
    """Where the arrays of each tensor are."""
    places = layout.places

    def place(array: StoredArray) -> Place:
        shard, begin = places[array.name]
        return Place(shard.file_name, begin, array.num_bytes)

    return {name: {array.name: place(array) for array in arrays} for name, arrays in layout.arrays.items()}


def _parse_finished(line: dict[str, Any]) -> EncodedTensor | None:
    name, sha256, arrays = line.get("tensor"), line.get("sha256"), line.get("arrays")
    if isinstance(name, str) and isinstance(sha256, str) and isinstance(arrays, dict):
        return EncodedTensor(name, sha256, arrays)
    return None
