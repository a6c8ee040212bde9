"""A shard while it grows: pieces of arrays at their places, by any process, and its hash in order."""

import errno
import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mxconv.checkpoint.regular_file import CHUNK_BYTES
from mxconv.errors import PackageError
from mxconv.package.journal import FILE_NAME as JOURNAL
from mxconv.package.manifest import FileRecord
from mxconv.package.shard_layout import Shard
from mxconv.system.disk import read_at, reserve, write_at

Write = Callable[[str, int, NDArray[np.generic]], None]
"""Takes an array's name, the byte offset inside it, and what belongs there."""


@dataclass(frozen=True)
class EncodedTensor:
    """The hash of a tensor, and the checksums of the arrays that were written for it."""

    name: str
    sha256: str  # of the 16-bit tensor, row-major
    arrays: dict[str, int]  # array name to the CRC-32 of its bytes


class FinishedShard(NamedTuple):
    """A shard that is whole, and the tensors that were encoded for it."""

    file: FileRecord
    tensors: list[EncodedTensor]


class PlacedFile(NamedTuple):
    """A file that becomes part of the package as it is."""

    name: str  # in the package
    source: Path
    link: bool  # where that is possible


class Written(NamedTuple):
    """Tensors whose arrays are written."""

    tensors: list[EncodedTensor]
    upload: FileRecord | None = None  # their shard, where it is on a store by now


ArrayNames = Mapping[str, Sequence[str]]
"""The names of the arrays of tensors, by the tensors' names."""

Encode = Callable[[Write], list[EncodedTensor]]
"""Encodes some tensors; what it is given takes their arrays."""


class GrowingShard:
    """A shard of this length with its header, hashed while tensors are finished in any order."""

    def __init__(self, shard: Shard, folder: Path, tensors: ArrayNames) -> None:
        """Lay out the file at full length: a full disk is noticed here, not hours later.

        Args:
            shard: what to write.
            folder: where; an earlier run may have left the file.
            tensors: whose arrays it holds, and the names of these.

        Raises:
            PackageError: it cannot be written.
        """
        self.shard, self._folder, self._tensors = shard, folder, tensors
        with reported(folder, shard.file_name):
            path = folder / shard.file_name
            path.touch()
            with FileIO(path, "r+b") as file:
                reserve(file, shard.num_bytes)
                write_at(file, shard.header, 0)
        self._digest = hashlib.sha256(shard.header)
        self._position = len(shard.header)
        self._missing = set(shard.offsets)  # arrays that are not written
        names = sorted(shard.offsets, key=lambda name: shard.offsets[name])
        ends = [*sorted(shard.offsets.values()), shard.num_bytes][1:]
        self._ends = list(zip(ends, names, strict=False))[::-1]  # of the arrays, the next one last
        self._finished: list[EncodedTensor] = []
        self._is_hashing = False  # some thread
        self._lock = threading.Lock()

    def finish(self, encoded: EncodedTensor) -> FinishedShard | None:
        """Take the arrays of a tensor as written, and hash what is there by now; the shard once it is whole.

        Raises:
            PackageError: it cannot be read.
        """
        if encoded.name not in self._tensors:
            return None
        with self._lock:
            self._finished.append(encoded)
            self._missing.difference_update(self._tensors[encoded.name])  # of empty ones nothing is written
            if self._is_hashing:
                return None
            self._is_hashing = True
        while True:
            with self._lock:
                end = self._position
                while self._ends and self._ends[-1][1] not in self._missing:
                    end = self._ends.pop()[0]
                if end == self._position:
                    self._is_hashing = False
                    return None if self._ends else self._whole()
            self._hash(end)

    def _hash(self, end: int) -> None:
        """Hash up to this byte, and have the disk keep what ends here."""
        # opened each time: a network's file system then shows what other machines have written
        name, num_bytes = self.shard.file_name, self.shard.num_bytes
        with reported(self._folder, name), FileIO(self._folder / name, "r+b") as file:
            while self._position < end:
                chunk = read_at(file, min(CHUNK_BYTES, end - self._position), self._position)
                if not chunk:
                    raise OSError("it was cut short")
                self._digest.update(chunk)
                self._position += len(chunk)
            if end == num_bytes:
                os.fsync(file.fileno())  # while others still work; at the very end everybody would wait

    def _whole(self) -> FinishedShard:
        name, sha256 = self.shard.file_name, self._digest.hexdigest()
        return FinishedShard(FileRecord(path=name, num_bytes=self.shard.num_bytes, sha256=sha256), self._finished)


class ArrayPlace(NamedTuple):
    """An array's shard, and the byte at which the array begins there."""

    file_name: str
    begin: int


@dataclass(frozen=True)
class FolderSink:
    """Takes arrays whose shards lie in a folder at full length; it can be sent to another process."""

    folder: Path  # absolute
    places: Mapping[str, ArrayPlace]  # by array name
    fingerprint: str | None = None  # of the conversion, as in its journal; None: nobody else writes there
    is_sent: bool = False  # to another process, which may outlive the conversion

    def __reduce__(self) -> tuple[object, ...]:
        return FolderSink, (self.folder, self.places, self.fingerprint, True)

    def take(self, encode: Encode) -> Written:
        """Have the arrays of some tensors written.

        Raises:
            PackageError: a shard cannot be written, or it is another conversion's.
        """
        if self.is_sent and self.places and self.fingerprint is not None:
            self._check_ours(self.fingerprint)
        with ExitStack() as stack:
            names = {place.file_name for place in self.places.values()}
            files = {name: stack.enter_context(_opened(self.folder, name)) for name in names}

            def write(name: str, offset: int, piece: NDArray[np.generic]) -> None:
                place = self.places[name]
                with reported(self.folder, place.file_name):
                    write_at(files[place.file_name], piece.reshape(-1).view(np.uint8).data, place.begin + offset)

            return Written(encode(write))

    def _check_ours(self, fingerprint: str) -> None:
        with reported(self.folder, JOURNAL), (self.folder / JOURNAL).open("rb") as journal:
            line = journal.readline()
        try:
            found = json.loads(line).get("fingerprint")
        except (ValueError, AttributeError):
            found = None
        if found != fingerprint:
            raise PackageError(
                f"{self.folder / JOURNAL}: of another conversion; a worker writes for the one that sent it. "
                "Run the same command again."
            )


@contextmanager
def _opened(folder: Path, name: str) -> Iterator[FileIO]:
    """A shard; on a network's file system the others see what was written once it is closed."""
    with reported(folder, name):
        file = FileIO(folder / name, "r+b")
    try:
        yield file
    finally:
        with reported(folder, name):
            file.close()


@contextmanager
def reported(folder: Path, name: str) -> Iterator[None]:
    """Turn errors of the system into ours.

    Raises:
        PackageError: for every OSError.
    """
    try:
        yield
    except OSError as error:
        where = folder / name
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            free = shutil.disk_usage(next(path for path in folder.parents if path.exists())).free
            raise PackageError(
                f"{where}: {error.strerror}, {free:,} bytes are free; more space is required. "
                "Free some and run the same command again: it goes on where it stopped."
            ) from error
        raise PackageError(
            f"{where}: cannot be written ({error.strerror or error}); a writable place is required. "
            "Check the path and its permissions."
        ) from error
