"""A package's file on its way to a device: read once, hashed and copied in the same pieces.

What is copied is what was hashed: a piece goes from the memory map into a buffer, and from there to the device and into
the hash, while the next one is read. The host holds two buffers and nothing else of the file.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch

from mxconv.arrays import U8
from mxconv.checkpoint.mapped_file import MappedFile
from mxconv.errors import PackageError
from mxconv.kernels.sha256 import new_stream, update

PIECE_BYTES = 16 << 20


class Buffer:
    """A piece on the host, in memory that a GPU reads by itself while a thread hashes it."""

    def __init__(self, device: torch.device) -> None:
        self._bytes = torch.empty(PIECE_BYTES, dtype=torch.uint8, pin_memory=device.type == "cuda")
        self._sent = torch.Event(device) if device.type == "cuda" else None
        self._hashed: Future[None] | None = None

    def fill(self, window: U8) -> torch.Tensor:
        """A copy of (n,) bytes, once what was here before has been read."""
        self.wait()
        piece = self._bytes[: len(window)]
        piece.numpy()[:] = window
        return piece

    def leaving(self, hashed: "Future[None]") -> None:
        """All copies of this piece have been asked for, and its hash."""
        self._hashed = hashed
        if self._sent is not None:
            self._sent.record()

    def wait(self) -> None:
        """Until they are done."""
        if self._sent is not None:
            self._sent.synchronize()
        if self._hashed is not None:
            self._hashed.result()


def stream_file(
    path: Path,
    sha256: str,
    wanted: Mapping[str, torch.Tensor],
    device: torch.device,
    progress: Callable[[int], None] = lambda _: None,
) -> None:
    """Copy arrays of a safetensors file, and check the hash of all its bytes.

    Args:
        path: the file.
        sha256: of it, as the manifest has it.
        wanted: (num_bytes,) uint8 tensors on the device by the names of arrays; filled here.
        device: where they are.
        progress: told the number of bytes of each piece.

    Raises:
        PackageError: the file has other bytes; what was copied must not be used.
        CheckpointError: it cannot be read.
    """
    file, hasher = MappedFile(path), ThreadPoolExecutor(1)
    places = [(file.entries[name].begin, file.entries[name].end, tensor) for name, tensor in wanted.items()]
    buffers, digest = (Buffer(device), Buffer(device)), new_stream()
    try:
        for number, begin in enumerate(range(0, file.num_bytes, PIECE_BYTES)):
            end = min(begin + PIECE_BYTES, file.num_bytes)
            file.fetch(end, min(end + PIECE_BYTES, file.num_bytes))
            window, buffer = file.window(begin, end), buffers[number % 2]
            piece = buffer.fill(window)
            file.release(window)
            for first, last, tensor in places:
                start, stop = max(first, begin), min(last, end)
                if start < stop:
                    tensor[start - first : stop - first].copy_(piece[start - begin : stop - begin], non_blocking=True)
            buffer.leaving(hasher.submit(update, [digest], [piece.numpy()]))
            progress(end - begin)
    finally:
        for buffer in buffers:
            buffer.wait()
        hasher.shutdown()
        file.close()
    if digest.hexdigest() != sha256:
        raise PackageError(
            f"{path}: SHA-256 {digest.hexdigest()}; the manifest says {sha256}. The file is damaged; convert again."
        )
