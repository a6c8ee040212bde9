"""The SHA-256 of a file that is being written: it follows the arrays that are complete."""

import hashlib
import os
import threading
from collections.abc import Callable, Collection
from functools import partial
from io import FileIO
from pathlib import Path

from mxconv.checkpoint.hashing import CHUNK_BYTES, PIECE_BYTES
from mxconv.conversion.layout import Shard
from mxconv.conversion.staged_shards import reported
from mxconv.system.positional import read_at


class ShardHash:
    """One shard, hashed in the order of its bytes; arrays may be completed in any order."""

    def __init__(self, shard: Shard, file: FileIO, folder: Path) -> None:
        """Follow a shard.

        Args:
            shard: its layout.
            file: open for reading; its header is written.
            folder: that it lies in.
        """
        self.shard, self._file, self._folder = shard, file, folder
        self._digest = hashlib.sha256()
        self._hexdigest: str | None = None  # of another process
        self._position = 0
        ends = [*sorted(shard.offsets.values()), shard.num_bytes][1:] or [shard.num_bytes]
        names = sorted(shard.offsets, key=lambda name: shard.offsets[name])
        self._missing = set(names)
        self._ends = [(end, name) for end, name in zip(ends, names, strict=False)][::-1]  # the next one last
        self._ready_end = min(shard.offsets.values(), default=shard.num_bytes)  # the header is there
        self._lock = threading.Lock()

    def complete(self, names: Collection[str]) -> None:
        """Note that these arrays are written; others than the shard's do not matter."""
        with self._lock:
            self._missing.difference_update(names)
            while self._ends and self._ends[-1][1] not in self._missing:
                self._ready_end = self._ends.pop()[0]

    def is_ready(self) -> bool:
        """Whether there are bytes to hash."""
        return self._position < self._ready_end

    def advance(self) -> bool:
        """Hash up to 32 MB that are ready; at the end of the file have the disk keep it, and return False."""
        with reported(self._folder, self.shard.file_name):
            end = min(self._ready_end, self._position + PIECE_BYTES)
            while self._position < end:
                chunk = read_at(self._file, min(CHUNK_BYTES, end - self._position), self._position)
                if not chunk:
                    raise OSError("it was cut short")
                self._digest.update(chunk)
                self._position += len(chunk)
            if self._position < self.shard.num_bytes:
                return True
            os.fsync(self._file.fileno())  # while others still work; at the very end everybody would wait
            return False

    def hexdigest(self) -> str:
        """Of the whole file."""
        if self._hexdigest is not None:
            return self._hexdigest
        assert self._position == self.shard.num_bytes
        return self._digest.hexdigest()

    def whole(self) -> Callable[[], str] | None:
        """The hash of the file as a function; None until all arrays are there."""
        if self._ready_end < self.shard.num_bytes:
            return None
        return partial(_hash_shard, self._folder.absolute(), self.shard.file_name, self.shard.num_bytes)

    def accept(self, outcome: str) -> None:
        """Take what another process found."""
        self._hexdigest = outcome


def _hash_shard(folder: Path, name: str, num_bytes: int) -> str:
    """The SHA-256 of a shard, which is then on the disk."""
    digest = hashlib.sha256()
    with reported(folder, name), (folder / name).open("r+b", buffering=0) as file:
        for offset in range(0, num_bytes, CHUNK_BYTES):
            chunk = read_at(file, min(CHUNK_BYTES, num_bytes - offset), offset)
            if len(chunk) < min(CHUNK_BYTES, num_bytes - offset):
                raise OSError("it was cut short")
            digest.update(chunk)
        os.fsync(file.fileno())
    return digest.hexdigest()
