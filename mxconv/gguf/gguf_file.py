"""A GGUF file mapped into memory, its tensors under Hugging Face's names, in its row order, as 16-bit patterns."""

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from mxconv.arrays import F32, I64
from mxconv.checkpoint.safetensors_header import DTYPES, TensorEntry
from mxconv.checkpoint.tensor import MappedBytes, SourceTensor
from mxconv.codecs.float16 import FORMATS
from mxconv.errors import CheckpointError
from mxconv.gguf.derived_config import main_type
from mxconv.gguf.ggml_type import decode_blocks
from mxconv.gguf.gguf_header import GgufEntry, GgufHeader, read_gguf_header
from mxconv.gguf.gguf_layout import OwnTensor, derive_layout
from mxconv.gguf.name_map import TensorPlace
from mxconv.system.processor import release

RATE_ERROR = 4e-7  # relative, of an exponential in float32


class GgufFile(MappedBytes):
    """One GGUF file, opened, checked and mapped read-only.

    MXFP4 tensors read as BF16, which holds every value of theirs exactly, those of other quantized types as F32, row
    by row as they are asked for. Small matrices that llama.cpp computes with in F32 (routers, convolutions) read as the
    16-bit type of the others where that has all their values. `begin` and `end` of an entry span the bytes that the
    tensor has when read, not those in the file.

    Raises:
        CheckpointError: it cannot be read, its head is refused, or it is no model that mxconv knows.
    """

    def __init__(self, path: Path) -> None:
        header = read_gguf_header(path)
        _check_whole(header, path)
        self.values: Mapping[str, Any] = header.values
        super().__init__(path, header.num_bytes)
        self.config, self._own = derive_layout(header, self._raw, path)
        self.entries = {name: _entry(name, own, own.entry.type.dtype) for name, own in self._own.items()}
        narrow = main_type(header.entries)
        self.entries |= {
            name: _entry(name, own, narrow) for name, own in self._own.items() if self._is_exact(name, narrow)
        }

    def stored(self, name: str) -> OwnTensor:
        """The places and types of a tensor in the file."""
        return self._own[name]

    def view(self, name: str) -> NDArray[np.generic]:
        """The whole tensor, read-only; a copy where the file has another arrangement, or blocks."""
        shape = self.entries[name].shape
        return self.rows(name, 0, shape[0]) if shape else self._raw(self._own[name].entry)

    def rows(self, name: str, start: int, stop: int) -> NDArray[np.generic]:
        own = self._own[name]
        entry, place = own.parts[0]
        if place.is_plain and own.axes is None:
            found = self._decoded(entry, slice(start, stop))
        else:
            found = np.empty((stop - start, *own.shape[1:]), DTYPES[entry.type.dtype].array_dtype)
            for part in own.parts:
                self._fill(found, own, *part, start, stop)
        if place.is_rate:
            found = _rates_undone(found)
        elif place.offset:
            found = found - np.float32(place.offset)
        if self.entries[name].dtype != entry.type.dtype:
            found = FORMATS[self.entries[name].dtype].encode(found)
        found.flags.writeable = False
        return found

    def release_rows(self, name: str, start: int, stop: int) -> None:
        """Take the pages of rows [start, stop) out of memory; of all rows where these may lie anywhere."""
        own = self._own[name]
        for entry, place in own.parts:
            first, last, count = start, stop, own.shape[0] if own.shape else 1
            if place.expert is not None:
                first, last, count = place.expert, place.expert + 1, entry.shape[0]
            elif own.axes is None and place.is_read_whole:
                first, last = 0, count
            num_bytes = entry.end - entry.begin
            if self._bytes is not None and num_bytes:
                release(self._map, entry.begin + num_bytes * first // count, entry.begin + num_bytes * last // count)

    def _fill(
        self, found: NDArray[Any], own: OwnTensor, entry: GgufEntry, place: TensorPlace, start: int, stop: int
    ) -> None:
        """Put what a part holds of rows [start, stop) in its places."""
        num_rows = entry.shape[-2] if len(entry.shape) > 1 else 0  # of one expert's matrix
        if own.axes is None:
            self._fill_matrix(found, entry, place, start, stop, own.shape[0], num_rows * (place.expert or 0))
            return
        for number, matrix in zip(range(start, stop), found, strict=True):
            turned = matrix if own.axes == "out_in" else matrix.T
            self._fill_matrix(turned, entry, place, 0, len(turned), len(turned), num_rows * number)

    def _fill_matrix(
        self, found: NDArray[Any], entry: GgufEntry, place: TensorPlace, start: int, stop: int, num_rows: int, base: int
    ) -> None:
        """The same of a vector or a matrix of `num_rows`, which begins at row `base` of the file's tensor."""
        if place.is_transposed:
            found[...] = self._decoded(entry, slice(None))[:, start:stop].T
            return
        rows = place.rows_of(start, stop, num_rows)
        if place.shape is not None:
            whole = self._decoded(entry, slice(None)).reshape(num_rows, -1)
            found[...] = whole[rows].reshape(found.shape)
            return
        here = slice(None) if isinstance(rows, slice) else np.flatnonzero(rows >= 0)
        at = slice(base + rows.start, base + rows.stop) if isinstance(rows, slice) else base + rows[here]
        values = self._decoded(entry, at)
        if place.columns is None:
            found[here] = values
        elif isinstance(here, slice):
            found[:, place.columns] = values
        else:
            found[np.ix_(here, place.columns)] = values

    def _decoded(self, entry: GgufEntry, rows: slice | I64) -> NDArray[Any]:
        """Some rows of a tensor, those of a stack one matrix after another."""
        stored = self._raw(entry)
        stored = stored.reshape(-1, stored.shape[-1])[rows] if stored.ndim > 1 else stored[rows]
        return decode_blocks(stored, entry.type.name) if entry.type.block > 1 else stored

    def _raw(self, entry: GgufEntry) -> NDArray[Any]:
        """A tensor as it lies in the file; blocks as (..., bytes of a row)."""
        window, kind = self.window(entry.begin, entry.end), entry.type
        if kind.block > 1:
            return window.reshape(*entry.shape[:-1], entry.shape[-1] // kind.block * kind.block_bytes)
        return window.view(DTYPES[kind.name].array_dtype).reshape(entry.shape)

    def _is_exact(self, name: str, dtype: str) -> bool:
        """Whether a small matrix, which llama.cpp computes with in F32, has only values of a 16-bit type."""
        own = self._own[name]
        is_f32_matrix = len(own.shape) > 1 and own.entry.type.name == "F32"
        if dtype not in FORMATS or not is_f32_matrix or not any(place.is_vector for _, place in own.parts):
            return False
        values = cast(F32, self.rows(name, 0, own.shape[0]))
        return bool(np.array_equal(FORMATS[dtype].decode(FORMATS[dtype].encode(values)), values))


class GgufSourceTensor(SourceTensor):
    """A tensor of a GGUF file, whose rows may have to be put together."""

    def __init__(self, name: str, file: GgufFile) -> None:
        super().__init__(name, file)
        stored = file.stored(name)
        self.num_bytes_stored, self.quantized_type = stored.num_bytes_stored, stored.quantized_type


def _check_whole(header: GgufHeader, path: Path) -> None:
    count = header.values.get("split.count", 1)
    if type(count) is int and count > 1:
        raise CheckpointError(
            f"{path}: one of {count} parts of a split model; one file with all tensors is required. Merge them first: "
            "llama-gguf-split --merge FIRST_PART MERGED.gguf"
        )
    if (kind := header.values.get("general.type", "model")) != "model":
        raise CheckpointError(
            f"{path}: general.type is {kind!r}; 'model' is required. Merge an adapter first, with llama-export-lora; "
            "of others, take the file that holds the model."
        )
    if not header.entries:
        raise CheckpointError(f"{path}: holds no tensors; a whole model is required. Take another GGUF file of it.")


def _rates_undone(rates: NDArray[np.float32]) -> NDArray[np.float32]:
    """The x of each -exp(x); where 16-bit floats give these rates, within what an exponential rounds off, these."""
    with np.errstate(invalid="ignore", divide="ignore"):
        logs = np.log(-rates)
        for kind in FORMATS.values():
            rounded = kind.decode(kind.encode(logs))
            if np.allclose(-np.exp(rounded), rates, RATE_ERROR, 0):
                return rounded
    return logs


def _entry(name: str, own: OwnTensor, dtype: str) -> TensorEntry:
    return TensorEntry(name, dtype, own.shape, 0, prod(own.shape) * DTYPES[dtype].num_bits // 8)
