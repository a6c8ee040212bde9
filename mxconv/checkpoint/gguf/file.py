"""A GGUF file mapped into memory, its tensors under Hugging Face's names, in its row order, as 16-bit patterns."""

import contextlib
import mmap
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxconv.arrays import U8
from mxconv.checkpoint.dtypes import DTYPES
from mxconv.checkpoint.gguf.config import derive_config
from mxconv.checkpoint.gguf.ggml_type import decode_blocks
from mxconv.checkpoint.gguf.header import GgufEntry, read_gguf_header
from mxconv.checkpoint.gguf.names import ROPE_FACTORS, from_gguf, has_paired_rows
from mxconv.checkpoint.gguf.rope_rows import gguf_rows
from mxconv.checkpoint.header import TensorEntry
from mxconv.checkpoint.regular_file import open_file
from mxconv.checkpoint.sent_files import check_look, remember, reopen
from mxconv.checkpoint.tensor import SourceTensor
from mxconv.errors import CheckpointError
from mxconv.system.pages import release


class GgufFile:
    """One GGUF file, opened, checked and mapped read-only.

    MXFP4 tensors read as BF16, which holds every value of theirs exactly, those of other quantized types as F32, row
    by row as they are asked for. `begin` and `end` of an entry span the bytes that the tensor has when read, not those
    in the file.
    """

    def __init__(self, path: Path) -> None:
        """Open and map the file.

        Raises:
            CheckpointError: it cannot be read, its head is refused, or it is no model that mxconv knows.
        """
        self.path = path
        header = read_gguf_header(path)
        self.values: Mapping[str, Any] = header.values
        by_name = {entry.name: entry for entry in header.entries}
        with open_file(path) as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if len(self._map) != header.num_bytes:
            raise CheckpointError(
                f"{path}: changed from {header.num_bytes:,} to {len(self._map):,} bytes while it was opened; "
                "a checkpoint must stay as it is. Wait until it is complete and run again."
            )
        self._bytes: U8 | None = np.frombuffer(self._map, np.uint8)
        factors = by_name.pop(ROPE_FACTORS, None)
        self.config = derive_config(header.values, by_name, self._raw(factors) if factors else None, path)
        self._stored = {self._name(entry): entry for entry in by_name.values()}
        self.entries: Mapping[str, TensorEntry] = {name: _entry(name, found) for name, found in self._stored.items()}
        self.look = remember(self, path)

    @property
    def is_closed(self) -> bool:
        return self._bytes is None

    def __reduce__(self) -> tuple[object, ...]:
        """Sent to another process, it is opened there."""
        return reopen, (type(self), self.path, self.look)

    def stored(self, name: str) -> GgufEntry:
        """Where and as what the file holds a tensor."""
        return self._stored[name]

    def view(self, name: str) -> NDArray[np.generic]:
        """The whole tensor, read-only; a copy where the file has other rows or blocks.

        Raises:
            ValueError: the file was closed.
        """
        shape = self.entries[name].shape
        return self.rows(name, 0, shape[0]) if shape else self._raw(self._stored[name])

    def rows(self, name: str, start: int, stop: int) -> NDArray[np.generic]:
        """Rows [start, stop) of a tensor, read-only.

        Raises:
            ValueError: the file was closed.
        """
        entry = self._stored[name]
        stored = self._raw(entry)
        if has_paired_rows(self.values["general.architecture"], entry.name):
            stored = stored[gguf_rows(start, stop, self.config["head_dim"])]
        else:
            stored = stored[start:stop]
        if entry.type.block > 1:
            stored = decode_blocks(stored.astype(np.uint8, copy=False), entry.type.name)
        stored.flags.writeable = False
        return stored

    def release_rows(self, name: str, start: int, stop: int) -> None:
        """Take the pages of rows [start, stop), of whole heads where they are in another order, out of memory."""
        entry = self._stored[name]
        if self._bytes is None or entry.end == entry.begin:
            return
        row_bytes = (entry.end - entry.begin) // entry.shape[0] if entry.shape else entry.end - entry.begin
        begin = entry.begin + start * row_bytes
        release(self._map, begin, entry.begin + stop * row_bytes)

    def release(self, rows: NDArray[np.generic]) -> None:
        """Nothing: `release_rows` does it, since rows need not be views of the file."""

    def check_unchanged(self) -> None:
        """Raises CheckpointError where the file was changed since it was opened."""
        check_look(self.path, self.look)

    def close(self) -> None:
        """Unmap, or leave that to the last view that is still in use."""
        self._bytes = None
        with contextlib.suppress(BufferError):  # a caller still holds a view, which keeps the map alive
            self._map.close()

    def _raw(self, entry: GgufEntry) -> NDArray[Any]:
        """A tensor as it lies in the file; blocks as (rows, bytes of a row)."""
        if self._bytes is None:
            raise ValueError(f"{self.path}: the checkpoint was closed")
        window = self._bytes[entry.begin : entry.end]
        kind = entry.type
        if kind.block > 1:
            return window.reshape(*entry.shape[:-1], entry.shape[-1] // kind.block * kind.block_bytes)
        return window.view(DTYPES[kind.name].array_dtype).reshape(entry.shape)

    def _name(self, entry: GgufEntry) -> str:
        name = from_gguf(entry.name)
        if name is None:
            raise CheckpointError(
                f"{self.path}: tensor {entry.name!r} has no place in a "
                f"{self.values['general.architecture']} model; only llama, qwen2 and qwen3 without extensions are "
                "read. Convert the model from its original checkpoint."
            )
        head_dim = self.config["head_dim"]
        if has_paired_rows(self.values["general.architecture"], entry.name) and (entry.shape or (1,))[0] % head_dim:
            raise CheckpointError(
                f"{self.path}: tensor {entry.name!r} of shape {list(entry.shape)}; whole heads of {head_dim} rows are "
                "required. Download or export the file again."
            )
        return name


class GgufTensor(SourceTensor):
    """A tensor of a GGUF file, whose rows may have to be put together."""

    def __init__(self, name: str, file: GgufFile) -> None:
        super().__init__(name, file)
        self._gguf = file
        stored = file.stored(name)
        self.num_bytes_stored = stored.end - stored.begin
        if stored.type.is_rounded:
            self.quantized_type = stored.type.name

    def rows(self, start: int, stop: int) -> NDArray[np.generic]:
        if not self.shape or not 0 <= start <= stop <= self.shape[0]:
            raise ValueError(f"tensor {self.name!r} of shape {self.shape} has no rows [{start}, {stop})")
        return self._gguf.rows(self.name, start, stop)

    def release(self, start: int = 0, stop: int | None = None) -> None:
        self._gguf.release_rows(self.name, start, self.shape[0] if stop is None and self.shape else stop or 1)


def _entry(name: str, stored: GgufEntry) -> TensorEntry:
    dtype = stored.type.dtype
    return TensorEntry(name, dtype, stored.shape, 0, prod(stored.shape) * DTYPES[dtype].num_bits // 8)
