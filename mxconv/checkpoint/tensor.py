"""Tensors of a source checkpoint, read in slices of rows, and the files that hold them.

A safetensors file is mapped into memory: its tensors are views of the page cache, not copies.
"""

import contextlib
import mmap
import sys
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet, WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from mxconv.arrays import U8
from mxconv.checkpoint.regular_file import Look, check_look, open_file
from mxconv.checkpoint.safetensors_header import DTYPES, TensorEntry, read_header
from mxconv.errors import CheckpointError
from mxconv.system.processor import release

if TYPE_CHECKING:
    from mxconv.checkpoint.object_store import ObjectLook

SMALL_BYTES = 1 << 17  # vectors
MAX_OPEN = 64  # files that other processes sent and nobody uses at the moment


class WeightFile(ABC):
    """A file that holds tensors: safetensors (`MappedFile`, on a store `RangedFile`), .bin or GGUF.

    Sent to another process, it is opened there, once. A file that has changed by then is refused: what one process
    planned would not be what another one reads.
    """

    path: Path
    entries: Mapping[str, TensorEntry]
    look: "Look | ObjectLook"  # when it was opened
    rank: int = 0  # who reads whole models goes through files in the order of their ranks

    @property
    def is_closed(self) -> bool:
        return False

    @property
    def label(self) -> Path | str:
        """The file's name in messages; a URL on an object store."""
        return self.path

    @abstractmethod
    def view(self, name: str) -> NDArray[np.generic]:
        """The whole tensor, read-only; ValueError where the file was closed."""

    def rows(self, name: str, start: int, stop: int) -> NDArray[np.generic]:
        """Rows [start, stop) of the first axis, read-only."""
        return self.view(name)[start:stop]

    def release_rows(self, name: str, start: int, stop: int) -> None:  # noqa: B027  nothing is held there by default
        """Drop rows [start, stop) of a tensor from resident memory; of one without axes, all of it."""

    @abstractmethod
    def close(self) -> None:
        """Close the file. Views that are still in use stay valid."""

    def check_unchanged(self) -> None:
        """Raises CheckpointError where the file was changed since it was opened."""
        self.check_place(self._place(), self.look)

    def remember(self) -> None:
        """Note that the file is open: whoever gets it sent in this same process gets it, not another one."""
        _open[type(self), self.path, self.look] = self

    def __reduce__(self) -> tuple[object, ...]:
        return _reopen, (type(self), self._place(), self.look)

    def _place(self) -> tuple[Any, ...]:
        """The arguments that open the file; the path comes last."""
        return (self.path,)

    @staticmethod
    def check_place(place: tuple[Any, ...], look: Any) -> None:
        """Raises CheckpointError where the file at this place is not the one that was opened."""
        check_look(place[-1], look)


_Key = tuple[type[WeightFile], Path, Any]
_open: WeakValueDictionary[_Key, WeightFile] = WeakValueDictionary()
_recent: OrderedDict[_Key, WeightFile] = OrderedDict()


def _reopen(kind: type[WeightFile], place: tuple[Any, ...], look: Any) -> WeightFile:
    """The file that was sent; CheckpointError where it is not here, or was changed."""
    key = kind, place[-1], look
    file = _open.get(key)
    if file is None or file.is_closed:
        kind.check_place(place, look)
        file = kind(*place)
    _recent[key] = file
    _recent.move_to_end(key)
    if len(_recent) > MAX_OPEN:
        _recent.popitem(last=False)
    return file


class SourceTensor:
    """A tensor of a checkpoint. Reading a mapped file gives views, so nothing is copied until it is computed on.

    Arrays are read-only and hold bit patterns (uint16) for BF16 and F16, bytes (uint8) for the 8-bit and
    smaller floats, and values of the NumPy type of the same name for everything else.
    """

    def __init__(self, name: str, file: WeightFile) -> None:
        entry = file.entries[name]
        self.name = name
        self.dtype: str = entry.dtype  # as safetensors writes it
        self.shape: tuple[int, ...] = entry.shape
        self.num_bytes: int = entry.num_bytes  # when read
        self.num_bytes_stored: int = entry.num_bytes  # in the file
        self.quantized_type: str | None = None  # GGML's, where what is read as F32 was quantized; --dtype rounds it
        self.num_elements: int = prod(entry.shape)
        self._file = file

    @property
    def path(self) -> Path | str:
        """The file that holds it, for messages; a URL on an object store."""
        return self._file.label

    @property
    def rank(self) -> int:
        """The rank of the file that holds it."""
        return self._file.rank

    @property
    def source_type(self) -> str:
        """The type in the file: GGML's where that is a quantized one, the dtype everywhere else."""
        return self.quantized_type or self.dtype

    def array(self) -> NDArray[np.generic]:
        """The whole tensor, (*shape,); a tensor of no dimensions gives an array of none."""
        return self._file.view(self.name)

    def rows(self, start: int, stop: int) -> NDArray[np.generic]:
        """Rows [start, stop) of the first axis, (stop - start, *shape[1:]); nothing else is read. Raises ValueError
        where the tensor has no axis, or the range is not inside it."""
        if not self.shape or not 0 <= start <= stop <= self.shape[0]:
            raise ValueError(f"tensor {self.name!r} of shape {self.shape} has no rows [{start}, {stop})")
        return self._file.rows(self.name, start, stop)

    def release(self, start: int = 0, stop: int | None = None) -> None:
        """Drop rows [start, stop), or everything, from resident memory.

        Call it after each slice and resident memory stays flat while gigabytes stream by. Views stay valid:
        what is read again comes back from the page cache or the disk.
        """
        num_rows = self.shape[0] if self.shape else 1
        self._file.release_rows(self.name, start, num_rows if stop is None else stop)

    def __repr__(self) -> str:
        return f"SourceTensor({self.name!r}, {self.source_type}, {list(self.shape)})"


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
        _mapped.add(self)

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

    def fetch(self, suffixes: tuple[str, ...] = ()) -> None:
        """Have the disk read small tensors and those named; by faults Linux reads megabytes around each."""
        for entry in self.entries.values():
            is_wanted = entry.num_bytes < SMALL_BYTES or entry.name.endswith(suffixes)
            if sys.platform != "win32" and is_wanted and hasattr(mmap, "MADV_WILLNEED"):
                begin = entry.begin - entry.begin % mmap.PAGESIZE
                self._map.madvise(mmap.MADV_WILLNEED, begin, entry.end - begin)

    def release_rows(self, name: str, start: int, stop: int) -> None:
        whole = self.view(name)
        self.release(whole[start:stop] if whole.ndim else whole)

    def close(self) -> None:
        """Unmap, or leave that to the last view that is still in use."""
        self._bytes = None
        with contextlib.suppress(BufferError):  # a caller still holds a view, which keeps the map alive
            self._map.close()


_mapped: WeakSet[MappedBytes] = WeakSet()


def mapped_files() -> list[MappedBytes]:
    """Return the files that are mapped at the moment."""
    return [file for file in _mapped if not file.is_closed]


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
