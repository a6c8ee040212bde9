"""The shards of a partial folder, as everybody opens them who writes or reads a tensor there, in any process."""

import errno
import hashlib
import json
import os
import shutil
import threading
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mxconv.checkpoint.hashing import CHUNK_BYTES, PIECE_BYTES
from mxconv.checkpoint.regular_file import open_file
from mxconv.errors import PackageError
from mxconv.package.journal import FILE_NAME as JOURNAL
from mxconv.package.shard_layout import Shard, ShardLayout
from mxconv.package.staging import EncodedTensor, Write, Written
from mxconv.system.disk import read_at, write_at
from mxconv.workers import Advance, Stream


class ArrayPlace(NamedTuple):
    """An array's shard, and the byte at which the array begins there."""

    file_name: str
    begin: int
    num_bytes: int


ArrayPlaces = Mapping[str, ArrayPlace]  # by array name


def array_places(layout: ShardLayout) -> dict[str, ArrayPlaces]:
    """The places of the arrays of each tensor."""
    at = {name: (shard.file_name, begin) for name, (shard, begin) in layout.places.items()}
    return {
        tensor: {array.name: ArrayPlace(*at[array.name], array.num_bytes) for array in arrays}
        for tensor, arrays in layout.arrays.items()
    }


@dataclass(frozen=True)
class FolderSink:
    """Takes the arrays of one tensor, see `staging.Sink`; its shards are there at full length."""

    folder: Path  # absolute
    fingerprint: str  # of the conversion, as in its journal
    places: ArrayPlaces
    is_sent: bool = False  # to another process, which may outlive the conversion

    def __reduce__(self) -> tuple[object, ...]:
        return FolderSink, (self.folder, self.fingerprint, self.places, True)

    def arrays(self, _: str) -> Collection[str]:
        return self.places.keys()

    @contextmanager
    def writing(self) -> Iterator[Write]:
        """A function that writes pieces of the arrays, until the end of the block.

        Raises:
            PackageError: a shard cannot be written, or it is another conversion's.
        """
        with ExitStack() as stack:
            if self.is_sent and self.places:
                self._check_ours()
            names = {place.file_name for place in self.places.values()}
            files = {name: stack.enter_context(_opened(self.folder, name, "r+b")) for name in names}

            def write(name: str, offset: int, piece: NDArray[np.generic]) -> None:
                place = self.places[name]
                with reported(self.folder, place.file_name):
                    write_at(files[place.file_name], piece.reshape(-1).view(np.uint8).data, place.begin + offset)

            yield write

    def finish(self, tensors: list[EncodedTensor]) -> Written:
        return Written(tensors)

    def _check_ours(self) -> None:
        with reported(self.folder, JOURNAL), (self.folder / JOURNAL).open("rb") as journal:
            line = journal.readline()
        try:
            found = json.loads(line).get("fingerprint")
        except (ValueError, AttributeError):
            found = None
        if found != self.fingerprint:
            raise PackageError(
                f"{self.folder / JOURNAL}: of another conversion; a worker writes for the one that sent it. "
                "Run the same command again."
            )


def different(path: Path, what: str) -> PackageError:
    """The error for a file that its source does not give."""
    return PackageError(
        f"{path}: {what}; the package is not what its source gives. Do not use it, or convert the source again."
    )


@dataclass(frozen=True)
class ComparedSink:
    """Compares the arrays of one tensor, see `staging.Sink`."""

    folder: Path  # absolute
    places: ArrayPlaces

    def arrays(self, _: str) -> Collection[str]:
        return self.places.keys()

    @contextmanager
    def writing(self) -> Iterator[Write]:
        """A function that compares pieces of the arrays; it raises PackageError for the first byte that differs."""
        with ExitStack() as stack:
            names = {place.file_name for place in self.places.values()}
            files = {name: stack.enter_context(open_file(self.folder / name)) for name in names}

            def compare(name: str, offset: int, piece: NDArray[np.generic]) -> None:
                place = self.places[name]
                content = piece.reshape(-1).view(np.uint8)
                files[place.file_name].seek(place.begin + offset)
                found = np.frombuffer(files[place.file_name].read(len(content)), np.uint8)
                if len(found) != len(content) or not np.array_equal(found, content):
                    raise different(self.folder / place.file_name, f"array {name} differs")

            yield compare

    def finish(self, tensors: list[EncodedTensor]) -> Written:
        return Written(tensors)


@dataclass(frozen=True)
class CheckIntact:
    """Whether the arrays of a finished tensor are the bytes that were written: a task."""

    folder: Path  # absolute

    def __call__(self, piece: tuple[EncodedTensor, ArrayPlaces], _: Advance) -> bool:
        encoded, places = piece
        return places.keys() == encoded.arrays.keys() and all(
            self._checksum(place) == encoded.arrays[name] for name, place in places.items()
        )

    def _checksum(self, place: ArrayPlace) -> int:
        """The CRC-32 of an array's bytes."""
        checksum, (name, offset, num_bytes) = 0, place
        with _opened(self.folder, name, "rb") as file, reported(self.folder, name):
            while num_bytes and (chunk := read_at(file, min(CHUNK_BYTES, num_bytes), offset)):
                checksum = zlib.crc32(chunk, checksum)
                offset, num_bytes = offset + len(chunk), num_bytes - len(chunk)
        return checksum


@contextmanager
def _opened(folder: Path, name: str, mode: str) -> Iterator[FileIO]:
    """A shard; on a network's file system the others see what was written once it is closed."""
    with reported(folder, name):
        file = FileIO(folder / name, mode)
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


class ShardHash(Stream):
    """One shard, hashed in the order of its bytes; arrays may be completed in any order."""

    def __init__(self, shard: Shard, folder: Path) -> None:
        """Follow a shard, whose file is in this folder with its header."""
        self.shard, self._folder = shard, folder
        self._digest = hashlib.sha256()
        self._hexdigest: str | None = None  # of another process
        self._position = 0
        self._missing = set(shard.offsets)  # arrays that are not written
        names = sorted(shard.offsets, key=lambda name: shard.offsets[name])
        ends = [*sorted(shard.offsets.values()), shard.num_bytes][1:]
        self._ends = list(zip(ends, names, strict=False))[::-1]  # of the arrays, the next one last
        self._num_ready = min(shard.offsets.values(), default=shard.num_bytes)  # bytes from the beginning; a header is
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[object, ...]:
        """A copy is sent when all of the file is written."""
        return ShardHash, (Shard(self.name, b"", {}, self.shard.num_bytes), self._folder.absolute())

    @property
    def name(self) -> str:
        return self.shard.file_name

    def complete(self, names: Collection[str]) -> None:
        """Note that these arrays are written; others than the shard's do not matter."""
        with self._lock:
            self._missing.difference_update(names)
            while self._ends and self._ends[-1][1] not in self._missing:
                self._num_ready = self._ends.pop()[0]

    def is_ready(self) -> bool:
        """Whether there are bytes to hash."""
        return self._position < self._num_ready

    def is_complete(self) -> bool:
        """Whether all of the file is written."""
        return self._num_ready == self.shard.num_bytes

    def advance(self) -> bool:
        """Hash up to 32 MB that are ready; at the end of the file have the disk keep it, and return False."""
        # opened each time: a network's file system then shows what other machines have written
        with reported(self._folder, self.name), FileIO(self._folder / self.name, "r+b") as file:
            end = min(self._num_ready, self._position + PIECE_BYTES)
            while self._position < end:
                chunk = read_at(file, min(CHUNK_BYTES, end - self._position), self._position)
                if not chunk:
                    raise OSError("it was cut short")
                self._digest.update(chunk)
                self._position += len(chunk)
            if self._position < self.shard.num_bytes:
                return True
            os.fsync(file.fileno())  # while others still work; at the very end everybody would wait
            return False

    def report(self) -> str:
        """The SHA-256 of the whole file."""
        assert self._position == self.shard.num_bytes
        return self._hexdigest or self._digest.hexdigest()

    def accept(self, report: str) -> None:
        """Take what a copy reports."""
        self._position, self._hexdigest = self.shard.num_bytes, report
