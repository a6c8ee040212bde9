"""The shards of a partial folder, as everybody opens them who writes or reads a tensor there, in any process."""

import errno
import json
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mxconv.conversion.encode import EncodedTensor, Write
from mxconv.conversion.executor import Advance
from mxconv.conversion.journal import FILE_NAME as JOURNAL
from mxconv.errors import PackageError
from mxconv.system.positional import read_at, write_at

CHUNK_BYTES = 1 << 20


class Place(NamedTuple):
    """Of an array: its shard, and the byte at which it begins there."""

    file_name: str
    begin: int
    num_bytes: int


Places = Mapping[str, Place]  # by array name


@dataclass(frozen=True)
class StagedShards:
    """The shards of one conversion; they are there at full length."""

    folder: Path  # absolute
    fingerprint: str  # of the conversion, as in its journal
    is_sent: bool = False  # to another process, which may outlive the conversion

    def __reduce__(self) -> tuple[object, ...]:
        return StagedShards, (self.folder, self.fingerprint, True)

    @contextmanager
    def writing(self, places: Places) -> Iterator[Write]:
        """A function that writes pieces of these arrays, until the end of the block.

        Raises:
            PackageError: a shard cannot be written, or it is another conversion's.
        """
        with ExitStack() as stack:
            if self.is_sent:
                self._check_ours()
            files = {
                name: stack.enter_context(self._open(name, "r+b")) for name in {p.file_name for p in places.values()}
            }

            def write(name: str, offset: int, piece: NDArray[np.generic]) -> None:
                place = places[name]
                with reported(self.folder, place.file_name):
                    write_at(files[place.file_name], piece.reshape(-1).view(np.uint8).data, place.begin + offset)

            yield write

    def checksum(self, place: Place) -> int:
        """The CRC-32 of an array's bytes."""
        checksum, (_, offset, num_bytes) = 0, place
        with self._open(place.file_name, "rb") as file, reported(self.folder, place.file_name):
            while num_bytes and (chunk := read_at(file, min(CHUNK_BYTES, num_bytes), offset)):
                checksum = zlib.crc32(chunk, checksum)
                offset, num_bytes = offset + len(chunk), num_bytes - len(chunk)
        return checksum

    @contextmanager
    def _open(self, name: str, mode: str) -> Iterator[FileIO]:
        """A shard; on a network's file system the others see what was written once it is closed."""
        with reported(self.folder, name):
            file = FileIO(self.folder / name, mode)
        try:
            yield file
        finally:
            with reported(self.folder, name):
                file.close()

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


@dataclass(frozen=True)
class ShardSink:
    """Where the arrays of one tensor go: see `staging.TensorSink`."""

    shards: StagedShards
    places: Places

    needs_sha256 = False  # the journal's line waits for whoever hashes

    def fill(self, encode: Callable[[Write], EncodedTensor]) -> EncodedTensor:
        """Have the arrays written."""
        with self.shards.writing(self.places) as write:
            return encode(write)


@dataclass(frozen=True)
class CheckIntact:
    """Whether the arrays of a finished tensor are the bytes that were written: a task."""

    shards: StagedShards

    def __call__(self, piece: tuple[EncodedTensor, Places], _: Advance) -> bool:
        encoded, places = piece
        return places.keys() == encoded.arrays.keys() and all(
            self.shards.checksum(place) == encoded.arrays[name] for name, place in places.items()
        )


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
