"""The SHA-256 of a file that is being written: it follows the arrays that are complete."""

import hashlib
import os
from collections.abc import Collection
from io import FileIO
from pathlib import Path

from mxconv.checkpoint.hashing import CHUNK_BYTES, PIECE_BYTES
from mxconv.conversion.arrivals import Arrivals
from mxconv.conversion.layout import Shard
from mxconv.conversion.staged_shards import reported
from mxconv.system.positional import read_at


class ShardHash:
    """One shard, hashed in the order of its bytes; arrays may be completed in any order."""

    def __init__(self, shard: Shard, folder: Path) -> None:
        """Follow a shard.

        Args:
            shard: its layout; the file is there, and its header is written.
            folder: that it lies in.
        """
        self.shard, self._folder = shard, folder
        self._digest = hashlib.sha256()
        self._hexdigest: str | None = None  # of another process
        self._position = 0
        self._arrivals = Arrivals(shard)

    def __reduce__(self) -> tuple[object, ...]:
        """A copy reads the file, and is told what is ready."""
        return ShardHash, (Shard(self.name, b"", {}, self.shard.num_bytes), self._folder.absolute())

    @property
    def name(self) -> str:
        return self.shard.file_name

    @property
    def ready(self) -> int:
        """Bytes, from the beginning, that are written."""
        return self._arrivals.num_bytes

    @ready.setter
    def ready(self, num_bytes: int) -> None:
        self._arrivals.num_bytes = num_bytes

    def complete(self, names: Collection[str]) -> None:
        """Note that these arrays are written; others than the shard's do not matter."""
        self._arrivals.complete(names)

    def is_ready(self) -> bool:
        """Whether there are bytes to hash."""
        return self._position < self.ready

    def advance(self) -> bool:
        """Hash up to 32 MB that are ready; at the end of the file have the disk keep it, and return False."""
        # opened each time: a network's file system then shows what other machines have written
        with reported(self._folder, self.name), FileIO(self._folder / self.name, "r+b") as file:
            end = min(self.ready, self._position + PIECE_BYTES)
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

    def hexdigest(self) -> str:
        """Of the whole file."""
        if self._hexdigest is not None:
            return self._hexdigest
        assert self._position == self.shard.num_bytes
        return self._digest.hexdigest()

    def report(self) -> tuple[int, str | None]:
        """Bytes that are hashed, and at the end the hash."""
        return self._position, self.hexdigest() if self._position == self.shard.num_bytes else None

    def accept(self, report: tuple[int, str | None]) -> None:
        """Take what a copy reports."""
        self._position, self._hexdigest = report
