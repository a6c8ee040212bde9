"""Arrays of a package on their way to a device: each file is read once, hashed and copied in the same pieces.

The bytes that are copied are those that were hashed: a piece goes from the memory map into a buffer, and from there to
the device and into the hash, while the next piece is read. The host holds two buffers and nothing else of the file.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch

from mxconv.arrays import U8
from mxconv.checkpoint.mapped_file import MappedFile
from mxconv.errors import PackageError
from mxconv.kernels.sha256 import new_stream, update
from mxconv.package.package import Package, inside
from mxconv.progress import Progress

PIECE_BYTES = 16 << 20
TORCH_DTYPES = {"U8": torch.uint8, "I8": torch.int8, "BF16": torch.int16}


def stream_arrays(
    package: Package, runs: Iterable[Sequence[str]], device: torch.device, progress: Progress
) -> dict[str, torch.Tensor]:
    """Copy arrays to the device; returns them by name, with dtype and shape.

    Args:
        package: where they are stored.
        runs: names of arrays; those of a run have the same length, and adjoin on the device.
        device: the destination.
        progress: receives the number of bytes that were hashed and copied.

    Raises:
        PackageError: a file has another hash than the manifest says.
    """
    flat: dict[str, torch.Tensor] = {}
    for run in runs:
        counts = [package.arrays[name].num_bytes for name in run]
        buffer = torch.empty(sum(counts), dtype=torch.uint8, device=device)
        flat |= zip(run, torch.split(buffer, counts), strict=True)
    paths = {package.arrays[name].path for name in flat}
    files = [each for each in package.manifest.files if inside(package.root, each.path) in paths]
    total, done = sum(each.num_bytes for each in files), 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        progress("load package", done, total)

    for each in files:
        path = inside(package.root, each.path)
        wanted = {name: tensor for name, tensor in flat.items() if package.arrays[name].path == path}
        _stream_file(path, each.sha256, wanted, device, advance)
    return {
        name: tensor.view(TORCH_DTYPES[package.arrays[name].dtype]).view(package.arrays[name].shape)
        for name, tensor in flat.items()
    }


def _stream_file(
    path: Path, sha256: str, wanted: Mapping[str, torch.Tensor], device: torch.device, progress: Callable[[int], None]
) -> None:
    """Copy arrays of a safetensors file, and check the hash of all its bytes.

    Args:
        path: the file.
        sha256: its hash in the manifest.
        wanted: (num_bytes,) uint8 tensors on the device by the names of arrays; filled here.
        device: the destination.
        progress: receives the number of bytes of each piece.

    Raises:
        PackageError: the file has other bytes; what was copied must not be used.
        CheckpointError: it cannot be read.
    """
    file, hasher = MappedFile(path), ThreadPoolExecutor(1)
    places = [(file.entries[name].begin, file.entries[name].end, tensor) for name, tensor in wanted.items()]
    buffers, digest = (PinnedBuffer(device), PinnedBuffer(device)), new_stream()
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


class PinnedBuffer:
    """A piece on the host, in memory that a GPU reads by itself while a thread hashes it."""

    def __init__(self, device: torch.device) -> None:
        self._bytes = torch.empty(PIECE_BYTES, dtype=torch.uint8, pin_memory=device.type == "cuda")
        self._sent = torch.Event(device) if device.type == "cuda" else None
        self._hashed: Future[None] | None = None

    def fill(self, window: U8) -> torch.Tensor:
        """Copy (n,) bytes into the buffer, once its last piece was copied and hashed."""
        self.wait()
        piece = self._bytes[: len(window)]
        piece.numpy()[:] = window
        return piece

    def leaving(self, hashed: "Future[None]") -> None:
        """Note that all copies of this piece, and its hash, are under way."""
        self._hashed = hashed
        if self._sent is not None:
            self._sent.record()

    def wait(self) -> None:
        """Wait until copies and hash are done."""
        if self._sent is not None:
            self._sent.synchronize()
        if self._hashed is not None:
            self._hashed.result()
