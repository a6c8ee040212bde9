"""A safetensors file mapped into memory: tensors are views of the page cache, not copies."""

import contextlib
import mmap
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mxconv.arrays import U8
from mxconv.checkpoint.regular_file import Look, open_file
from mxconv.checkpoint.safetensors_header import DTYPES, TensorEntry, read_header
from mxconv.checkpoint.tensor import WeightFile
from mxconv.errors import CheckpointError
from mxconv.system.processor import release


class MappedBytes(WeightFile):
    """A file of the length that its header tells, mapped read-only; what containers of tensors have in common.

    Raises:
        CheckpointError: it cannot be read, or has another length by now.
    """

    def __init__(self, path: Path, num_bytes: int) -> None:
        self.path, self.num_bytes = path, num_bytes
        with open_file(path) as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if len(self._map) != num_bytes:
            raise CheckpointError(
                f"{path}: changed from {num_bytes:,} to {len(self._map):,} bytes while it was opened; "
                "a checkpoint must stay as it is. Wait until it is complete and run again."
            )
        self._bytes: U8 | None = np.frombuffer(self._map, np.uint8)
        self.look = Look.at(path)
        self.remember()

    @property
    def is_closed(self) -> bool:
        return self._bytes is None

    def window(self, begin: int, end: int) -> U8:
        """Bytes [begin, end) of the file, header included, read-only and uncopied; ValueError once it was closed."""
        if self._bytes is None:
            raise ValueError(f"{self.path}: the checkpoint was closed")
        return self._bytes[begin:end]

    def release(self, rows: NDArray[np.generic]) -> None:
        """Take the pages under a view of this file out of resident memory; reading them again is safe."""
        if self._bytes is not None and rows.nbytes:
            begin = rows.ctypes.data - self._bytes.ctypes.data
            release(self._map, begin, begin + rows.nbytes)

    def release_rows(self, name: str, start: int, stop: int) -> None:
        whole = self.view(name)
        self.release(whole[start:stop] if whole.ndim else whole)

    def close(self) -> None:
        """Unmap, or leave that to the last view that is still in use."""
        self._bytes = None
        with contextlib.suppress(BufferError):  # a caller still holds a view, which keeps the map alive
            self._map.close()


class MappedFile(MappedBytes):
    """One safetensors file, opened, checked and mapped read-only.

    Raises:
        CheckpointError: it cannot be read, or its header is refused.
    """

    def __init__(self, path: Path) -> None:
        header = read_header(path)
        self.entries: Mapping[str, TensorEntry] = {entry.name: entry for entry in header.entries}
        self.metadata: Mapping[str, str] = header.metadata
        super().__init__(path, header.num_bytes)

    def view(self, name: str) -> NDArray[np.generic]:
        """The whole tensor, uncopied, and not always aligned: other writers put tensors at any byte."""
        entry = self.entries[name]
        return as_tensor(self.window(entry.begin, entry.end), entry, self.path)


def as_tensor(raw: U8, entry: TensorEntry, path: Path | str) -> NDArray[np.generic]:
    """The bytes of a tensor, or of whole rows of its first axis, as the array that they are. Raises CheckpointError,
    which names `path`, where the last axis of a packed dtype ends inside a byte."""
    dtype, shape = DTYPES[entry.dtype], entry.shape
    if dtype.is_packed:
        row_bits = (shape[-1] if shape else 1) * dtype.num_bits
        if row_bits % 8:
            raise CheckpointError(
                f"{path}: tensor {entry.name!r}: {dtype.name} of shape {list(shape)} has rows of {row_bits} "
                "bits; rows must be whole bytes. Leave this tensor out."
            )
        shape = (*shape[:-1], row_bits // 8)
    if len(raw) != entry.num_bytes and shape[0]:
        shape = (len(raw) * shape[0] // entry.num_bytes, *shape[1:])
    return raw.view(dtype.array_dtype).reshape(shape)
