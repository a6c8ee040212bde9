"""SHA-256 of files that do not fit into memory."""

import hashlib
from pathlib import Path

from mxconv.checkpoint.regular_file import check_regular_file, open_file
from mxconv.system.memory import will_read
from mxconv.workers import Advance, Stream, uncounted

CHUNK_BYTES = 1 << 18  # what is read stays in a core's own cache until it is hashed
PIECE_BYTES = 1 << 25


class FileHash(Stream):
    """The SHA-256 of a regular file, computed in pieces; `advance` is called with the bytes of each once it is hashed.

    Raises:
        CheckpointError: it cannot be read.
    """

    def __init__(self, path: Path, advance: Advance = uncounted) -> None:
        self.path, self._advance = path, advance
        self.num_bytes = 0  # hashed so far
        self.is_finished = False
        self._digest = hashlib.sha256()
        self._hexdigest: str | None = None  # of another process
        self.num_bytes_in_file = check_regular_file(path)

    def __reduce__(self) -> tuple[object, ...]:
        """A copy begins at the beginning."""
        return FileHash, (self.path.absolute(),)

    def advance(self) -> bool:
        """Hash up to 32 MB more; False at the end of the file. Raises CheckpointError where it cannot be read."""
        chunk = bytearray(CHUNK_BYTES)
        window = memoryview(chunk)
        end = self.num_bytes + PIECE_BYTES
        with open_file(self.path) as file:
            will_read(file, self.num_bytes, 2 * PIECE_BYTES)
            file.seek(self.num_bytes)
            while self.num_bytes < end:
                num_read = file.readinto(chunk)  # type: ignore[attr-defined]
                if not num_read:
                    self.is_finished = True
                    return False
                self._digest.update(window[:num_read])
                self.num_bytes += num_read
                self._advance(num_read)
        return True

    def hexdigest(self) -> str:
        """The SHA-256 of the bytes that were hashed so far."""
        return self._digest.hexdigest() if self._hexdigest is None else self._hexdigest

    def report(self) -> tuple[int, str]:
        """Length and hash of the file, at its end."""
        return self.num_bytes, self.hexdigest()

    def accept(self, report: tuple[int, str]) -> None:
        """Take what a copy reports."""
        self._advance(report[0] - self.num_bytes)
        self.num_bytes, self._hexdigest = report
        self.is_finished = True


def sha256_file(path: Path, advance: Advance = uncounted) -> str:
    """The SHA-256 of a file's bytes, in hex; arguments and errors are those of `FileHash`."""
    whole = FileHash(path, advance)
    while whole.advance():
        pass
    return whole.hexdigest()
