"""Weights in large pages: copies of arrays that lie in mapped files.

Files are mapped in pages of 4 KB. In pages of 2 MB a processor translates fewer addresses and its prefetchers are not
stopped at the end of each, so that passes over one row take .92 to .95 of the time (docs/research/log.md, 2026-11-25).
"""

import mmap
import sys
from typing import Literal, TypeVar, cast, get_args

import numpy as np
from numpy.typing import NDArray

from mxconv.errors import MxconvError
from mxconv.system.processor import available_bytes

Element = TypeVar("Element", bound=np.generic)
WeightPlace = Literal["auto", "map", "copy"]
LARGE_PAGE = 1 << 21  # bytes
FEWEST_BYTES = 1 << 16  # smaller arrays stay where they are
CHUNK_BYTES = 1 << 26  # of memory that arrays are put into one after another
LINE = 64  # bytes


class WeightPages:
    """Puts arrays of weights into large pages, each once, as long as there is memory."""

    def __init__(self, place: WeightPlace = "auto") -> None:
        """Plan where weights lie.

        Args:
            place: "map" leaves them in their files, "copy" copies them, "auto" copies them where the system has large
                pages, up to half of the memory that is available now.

        Raises:
            MxconvError: another word.
        """
        if place not in get_args(WeightPlace):
            raise MxconvError(f"weights {place!r}: unknown; one of {', '.join(get_args(WeightPlace))} is required.")
        self._left: float = {
            "map": 0,
            "copy": float("inf"),
            "auto": available_bytes() // 2 if has_large_pages() else 0,
        }[place]
        self._chunk = np.empty(0, np.uint8)
        self._copies: dict[tuple[int, int], tuple[NDArray[np.generic], NDArray[np.uint8]]] = {}

    def put(self, array: NDArray[Element]) -> NDArray[Element]:
        """A read-only copy of an array of a file, or the array itself where it is small or memory is short."""
        num_bytes = array.nbytes
        key = array.ctypes.data, num_bytes
        if key not in self._copies:
            is_taken = FEWEST_BYTES <= num_bytes <= self._left and array.flags.c_contiguous
            if not is_taken or _is_in_memory(array):
                return array
            self._left -= num_bytes
            copy = self._room(num_bytes)
            copy[:] = array.reshape(-1).view(np.uint8)
            copy.flags.writeable = False
            self._copies[key] = array, copy  # the array stays alive, or another could have its address
        return cast("NDArray[Element]", self._copies[key][1].view(array.dtype).reshape(array.shape))

    def forget(self) -> None:
        """Let go of the arrays that were copied; the copies live as long as who uses them."""
        self._copies.clear()

    def _room(self, num_bytes: int) -> NDArray[np.uint8]:
        if num_bytes > len(self._chunk):
            self._chunk = large_pages(max(num_bytes, CHUNK_BYTES))
        room, self._chunk = self._chunk[:num_bytes], self._chunk[-(-num_bytes // LINE) * LINE :]
        return room


def _is_in_memory(array: NDArray[np.generic]) -> bool:
    """Whether NumPy made the array or what it is a view of: weights that were decoded, which a copy would double."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array.base is None


def has_large_pages() -> bool:
    """Whether the system gives programs large pages when they ask: Linux, unless somebody forbade them."""
    return sys.platform == "linux" and hasattr(mmap, "MADV_HUGEPAGE")


def large_pages(num_bytes: int) -> NDArray[np.uint8]:
    """Memory that begins at a large page, in such pages where the system has them."""
    if sys.platform != "linux" or not has_large_pages():
        return np.empty(num_bytes, np.uint8)
    mapped = mmap.mmap(-1, num_bytes + LARGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    mapped.madvise(mmap.MADV_HUGEPAGE)
    memory = np.frombuffer(mapped, np.uint8)
    start = -memory.ctypes.data % LARGE_PAGE
    return memory[start : start + num_bytes]
