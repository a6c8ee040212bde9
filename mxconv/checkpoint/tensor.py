"""One tensor of a source checkpoint, read in slices of rows."""

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from mxconv.arrays import U8
from mxconv.checkpoint.header import TensorEntry
from mxconv.checkpoint.sent_files import Look

if TYPE_CHECKING:
    from mxconv.checkpoint.store.store import ObjectLook


class WeightFile(Protocol):
    """A file that holds tensors: `MappedFile` or `RangedFile` (safetensors), `LegacyFile` (.bin), `GgufFile`."""

    path: Path
    entries: Mapping[str, TensorEntry]

    @property
    def look(self) -> "Look | ObjectLook": ...  # when it was opened

    def view(self, name: str) -> NDArray[np.generic]: ...
    def release(self, rows: NDArray[np.generic]) -> None: ...
    def check_unchanged(self) -> None: ...
    def close(self) -> None: ...


class WindowedFile(WeightFile, Protocol):
    """A safetensors file whose bytes can be had in any order: `MappedFile` or `RangedFile`."""

    @property
    def num_bytes(self) -> int: ...
    def window(self, begin: int, end: int) -> U8: ...
    def fetch(self, begin: int, end: int) -> None: ...


class SourceTensor:
    """A tensor on disk. Reading gives views of the memory map, so nothing is copied until it is computed on.

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
        return self._file.path

    @property
    def source_type(self) -> str:
        """What the file holds: GGML's type where that is a quantized one, the dtype everywhere else."""
        return self.quantized_type or self.dtype

    def array(self) -> NDArray[np.generic]:
        """The whole tensor, (*shape,); a tensor of no dimensions gives an array of none."""
        return self._file.view(self.name)

    def rows(self, start: int, stop: int) -> NDArray[np.generic]:
        """Rows [start, stop) of the first axis, (stop - start, *shape[1:]).

        Raises:
            ValueError: the tensor has no axis, or the range is not inside it.
        """
        if not self.shape or not 0 <= start <= stop <= self.shape[0]:
            raise ValueError(f"tensor {self.name!r} of shape {self.shape} has no rows [{start}, {stop})")
        return self._file.view(self.name)[start:stop]

    def release(self, start: int = 0, stop: int | None = None) -> None:
        """Drop rows [start, stop), or everything, from resident memory.

        Call it after each slice and resident memory stays flat while gigabytes stream by. Views stay valid:
        what is read again comes back from the page cache or the disk.
        """
        whole = self._file.view(self.name)
        self._file.release(whole if whole.ndim == 0 else whole[start:stop])

    def __repr__(self) -> str:
        return f"SourceTensor({self.name!r}, {self.source_type}, {list(self.shape)})"
