"""The frames of a compact file, one after the other, never trusted.

Each is read at most as far as an encoder could have made it long, and decoded into at most as many bytes as the chunk
has, so a file that lies costs no memory.

Source: formats/compact.md.
"""

from pathlib import Path
from typing import BinaryIO

from mxconv.arrays import U8
from mxconv.checkpoint.compact.compact_layout import Chunk, read_preamble
from mxconv.checkpoint.compact.plane_coding import ZstdError, decode_planes, frame_bytes
from mxconv.errors import CheckpointError

READ_BYTES = 1 << 22


class FrameReader:
    """A compact file, open for reading; `preamble` is its first frame.

    Raises:
        CheckpointError: it is no compact file, or of another version.
    """

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path, self._file = path, file
        self.preamble = read_preamble(path, file)
        self._offset = file.tell()
        self._ahead = memoryview(b"")

    def take(self, chunk: Chunk) -> list[memoryview]:
        """The chunk's frames, which follow. Raises CheckpointError where there are none."""
        return [self._next(chunk) for _ in range(chunk.num_planes)]

    def _next(self, chunk: Chunk) -> memoryview:
        longest = chunk.num_elements + chunk.num_elements // 128 + 1024  # the bound of zstd's own encoder is lower
        if len(self._ahead) < longest:
            self._ahead = memoryview(b"".join((self._ahead, self._file.read(READ_BYTES))))
        try:
            length = frame_bytes(self._ahead[:longest])
        except ZstdError as error:
            raise self._damaged(chunk, f"no whole zstd frame at byte {self._offset:,}") from error
        frame, self._ahead = self._ahead[:length], self._ahead[length:]
        self._offset += length
        return frame

    def decode(self, chunk: Chunk, frames: list[memoryview], base: U8 | None = None) -> U8:
        """The chunk's bytes; for any thread. Raises CheckpointError where a frame is damaged or of another length."""
        try:
            return decode_planes(frames, chunk.num_elements, base)
        except (ZstdError, ValueError) as error:
            raise self._damaged(chunk, str(error)) from error

    def check_end(self) -> None:
        """Raise CheckpointError where bytes follow the last frame."""
        if self._ahead or self._file.read(1):
            raise CheckpointError(
                f"{self.path}: goes on after byte {self._offset:,}, where the last frame ends; nothing may follow. "
                "Download the file again."
            )

    def _damaged(self, chunk: Chunk, found: str) -> CheckpointError:
        return CheckpointError(
            f"{self.path}: {chunk.label}, byte {chunk.begin:,} of the restored file: {found}; {chunk.num_planes} "
            f"frames of {chunk.num_elements:,} bytes each are required. Download the file again."
        )
