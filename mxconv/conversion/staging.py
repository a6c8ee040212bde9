"""The folder in which a package grows, beside its target, and the journal that lets a killed conversion go on.

    PACKAGE.partial/                 becomes PACKAGE in one rename
    PACKAGE.partial/.mxconv-journal  line 1: the fingerprint; then one line a finished tensor

A line is written only after the tensor's arrays are. On resume every array of a finished tensor is hashed again, so
that even a crash of the machine, which may keep the line and lose the bytes, is noticed.
"""

import errno
import hashlib
import json
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxconv.checkpoint.manifest import FILE_NAME
from mxconv.conversion.encode import EncodedTensor
from mxconv.conversion.layout import Layout, Shard
from mxconv.errors import PackageError

JOURNAL = ".mxconv-journal"
CHUNK_BYTES = 1 << 20


class Staging:
    """The partial folder of one conversion."""

    def __init__(self, target: Path, fingerprint: str) -> None:
        """Open or create the folder.

        Args:
            target: the package's final path.
            fingerprint: of the source files and options; a partial folder with another one is started over.

        Raises:
            PackageError: something else stands at the partial path, or it cannot be written.
        """
        self.target = target
        self.path = target.with_name(target.name + ".partial")
        self.fingerprint = fingerprint
        self._lock = threading.Lock()
        self._files: dict[str, FileIO] = {}
        lines = self._read_journal()
        self.is_resumed = bool(lines) and lines[0].get("fingerprint") == fingerprint
        self._finished = lines[1:] if self.is_resumed else []
        with self._reported("the package"):
            if self.path.exists() and not self.is_resumed:
                shutil.rmtree(self.path)
            self.path.mkdir(parents=True, exist_ok=True)
            if not self.is_resumed:
                self._journal_path.write_text(json.dumps({"fingerprint": fingerprint}) + "\n")

    @property
    def _journal_path(self) -> Path:
        return self.path / JOURNAL

    def prepare(self, layout: Layout) -> dict[str, EncodedTensor]:
        """Lay out the shards at full length; a full disk is noticed here, not hours later.

        Returns:
            The tensors that an earlier run finished, their bytes checked.
        """
        for shard in layout.shards:
            with self._reported(shard.file_name):
                self._open(shard)
        finished = {}
        for line in self._finished:
            encoded = _parse_finished(line)
            if encoded is not None and self._is_intact(encoded, layout):
                finished[encoded.name] = encoded
        return finished

    def write(self, shard: Shard, offset: int, piece: NDArray[np.generic]) -> None:
        """Write bytes at an offset of a shard; threads may write side by side."""
        with self._reported(shard.file_name):
            view = piece.reshape(-1).view(np.uint8).data
            while view:
                num_written = os.pwrite(self._files[shard.file_name].fileno(), view, offset)
                view, offset = view[num_written:], offset + num_written

    def finish_tensor(self, encoded: EncodedTensor) -> None:
        """Note in the journal that all arrays of a tensor are written."""
        line = {"tensor": encoded.name, "sha256": encoded.sha256, "arrays": encoded.arrays}
        with self._lock, self._reported(JOURNAL), self._journal_path.open("a") as journal:
            journal.write(json.dumps(line) + "\n")

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
                    if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EACCES):
                        raise
            shutil.copyfile(source, path)

    def commit(self, manifest: bytes, force: bool) -> None:
        """Write the manifest, make everything durable, and put the folder in its place."""
        self.write_file(FILE_NAME, manifest)
        with self._reported("the package"):
            for file in self._files.values():
                os.fsync(file.fileno())
            self.close()
            _fsync(self.path / FILE_NAME)
            _fsync(self.path)
            retired = self.target.with_name(self.target.name + ".replaced")
            if self.target.exists() and force:
                if retired.exists():
                    shutil.rmtree(retired)
                self.target.rename(retired)
            self.path.rename(self.target)
            _fsync(self.target.parent)
            (self.target / JOURNAL).unlink(missing_ok=True)
            if retired.exists():
                shutil.rmtree(retired)

    def close(self) -> None:
        """Close the shards; what was written stays for a later run."""
        for file in self._files.values():
            file.close()
        self._files = {}

    def _open(self, shard: Shard) -> None:
        path = self.path / shard.file_name
        path.touch()
        file = path.open("r+b", buffering=0)
        self._files[shard.file_name] = file
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, shard.num_bytes)
        os.ftruncate(file.fileno(), shard.num_bytes)
        os.pwrite(file.fileno(), shard.header, 0)

    def _is_intact(self, encoded: EncodedTensor, layout: Layout) -> bool:
        """Whether the arrays of a finished tensor are the bytes that were written."""
        places = layout.places
        arrays = {array.name: array.num_bytes for array in layout.arrays.get(encoded.name, ())}
        if arrays.keys() != encoded.arrays.keys():
            return False
        for name, num_bytes in arrays.items():
            shard, offset = places[name]
            if _sha256(self._files[shard.file_name], offset, num_bytes) != encoded.arrays[name]:
                return False
        return True

    def _read_journal(self) -> list[dict[str, Any]]:
        """The journal's lines; a last line cut short by a kill is left out."""
        if not self.path.exists():
            return []
        if not self._journal_path.is_file():
            raise PackageError(
                f"{self.path}: exists and is no interrupted conversion; this path is needed while converting. "
                "Move it away, or choose another output."
            )
        lines = []
        for text in self._journal_path.read_text(errors="replace").splitlines():
            try:
                line = json.loads(text)
            except ValueError:
                break
            if not isinstance(line, dict):
                break
            lines.append(line)
        return lines

    @contextmanager
    def _reported(self, name: str) -> Iterator[None]:
        """Turn errors of the system into ours."""
        try:
            yield
        except OSError as error:
            where = self.path / name
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                free = shutil.disk_usage(self.target.parent).free
                raise PackageError(
                    f"{where}: {error.strerror}, {free:,} bytes are free; more space is required. "
                    "Free some and run the same command again: it goes on where it stopped."
                ) from error
            raise PackageError(
                f"{where}: cannot be written ({error.strerror or error}); a writable place is required. "
                "Check the path and its permissions."
            ) from error


def fingerprint(*parts: object) -> str:
    """SHA-256 over the JSON of everything that decides the bytes of a package."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def check_target(target: Path, force: bool) -> None:
    """Refuse to overwrite anything but a package, and that only with --force.

    Raises:
        PackageError: the path exists.
    """
    if not os.path.lexists(target):
        return
    if not force:
        raise PackageError(f"{target}: exists; nothing is overwritten. Choose another output, or use --force.")
    if target.is_symlink() or not target.is_dir() or not (target / FILE_NAME).is_file():
        raise PackageError(
            f"{target}: exists and is no package; --force replaces packages only. Choose another output, or remove it."
        )


def _parse_finished(line: dict[str, Any]) -> EncodedTensor | None:
    name, sha256, arrays = line.get("tensor"), line.get("sha256"), line.get("arrays")
    if isinstance(name, str) and isinstance(sha256, str) and isinstance(arrays, dict):
        return EncodedTensor(name, sha256, arrays)
    return None


def _sha256(file: FileIO, offset: int, num_bytes: int) -> str:
    digest = hashlib.sha256()
    while num_bytes:
        chunk = os.pread(file.fileno(), min(CHUNK_BYTES, num_bytes), offset)
        if not chunk:
            break
        digest.update(chunk)
        offset, num_bytes = offset + len(chunk), num_bytes - len(chunk)
    return digest.hexdigest()


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
