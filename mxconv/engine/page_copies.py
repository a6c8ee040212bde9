"""What drafts keep of the whole pages of a sequence beside its cache: ranges of keys, or copies of a byte a number.

Passes of the drafts that read them fill them in, each page once, until its text is taken back.
"""

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mxconv.arrays import F32
from mxconv.engine.kv_pages import PAGE

COLUMNS = 64  # of a page in bytes are stored together
MOST_COLUMNS = 512  # numbers of a head that native kernels read in bytes
MOST_STEPS = np.float32(127)


class PageCopies:
    """An array with a place for each page of a cache, of which the first `num_pages` are filled."""

    name: ClassVar[str]  # of the array, to native kernels
    axis: ClassVar[int]  # that counts pages

    def __init__(self) -> None:
        self.num_pages = 0
        self._values: NDArray[Any] | None = None

    def array(self, page_shape: tuple[int, ...], room: int) -> NDArray[Any]:
        """The array, with room for so many pages, each (attending layers, 2, heads, PAGE, head_dim) in the cache."""
        known = self._values
        if known is None or known.shape[self.axis] < room:
            layers, _, heads, _, size = page_shape
            self._values = self.empty((layers, heads), size, max(room, 2 * self.num_pages))
            if known is not None:
                kept = (slice(None),) * self.axis + (slice(self.num_pages),)
                self._values[kept] = known[kept]
        assert self._values is not None
        return self._values

    def cut(self, length: int) -> None:
        """Forget those of pages with positions from `length` on."""
        self.num_pages = min(self.num_pages, length // PAGE)

    @staticmethod
    def empty(heads: tuple[int, int], size: int, num_pages: int) -> NDArray[Any]:
        raise NotImplementedError


class KeyRanges(PageCopies):
    """The greatest and the least of each number of a page's keys, by which drafts retrieve pages.

    (attending layers, num_key_value_heads, 2, head_dim, pages) float32.
    """

    name, axis = "key_ranges", 4

    @staticmethod
    def empty(heads: tuple[int, int], size: int, num_pages: int) -> NDArray[Any]:
        return np.empty((*heads, 2, size, num_pages), np.float32)


class BytePages(PageCopies):
    """Keys and values in bytes: (attending layers, 2, num_key_value_heads, pages, bytes of a page), keys before values.

    Heads are whole blocks of 64 columns. A page of keys is as float32 the step and the least of each column, then bytes
    (columns / 4, 64, 4); one of values is the step of each position, as long, then bytes (64 / 4, columns, 4).
    """

    name, axis = "byte_pages", 3

    @staticmethod
    def empty(heads: tuple[int, int], size: int, num_pages: int) -> NDArray[Any]:
        columns = -(-size // COLUMNS) * COLUMNS
        layers, count = heads
        return np.empty((layers, 2, count, num_pages, PAGE * columns + 4 * max(2 * columns, PAGE)), np.uint8)


def read_in_bytes(keys: F32, values: F32) -> tuple[F32, F32]:
    """Keys and values as a copy in bytes has them: those of whole pages rounded, all others as they are.

    Every number of a page's keys is a whole number of steps above the least, 0 to 127; every number of a value a whole
    number, -127 to 127, of the steps of its position.

    Args:
        keys: (num_key_value_heads, num_positions, head_dim) float32, from the first position of a text on.
        values: likewise.

    Source:
        Ranges of keys by column and of values by position: KIVI, arXiv 2402.02750. A quantized cache as that of a
        draft: QuantSpec, arXiv 2502.10424.
    """
    heads, count, size = keys.shape
    count -= count % PAGE
    whole = keys[:, :count].reshape(heads, -1, PAGE, size)
    least = whole.min(axis=2, keepdims=True)
    key_steps = (whole.max(axis=2, keepdims=True) - least) / MOST_STEPS
    value_steps = np.abs(values[:, :count]).max(axis=2, keepdims=True) / MOST_STEPS
    read_keys, read_values = keys.copy(), values.copy()
    rounded = least + _steps(whole - least, key_steps) * key_steps
    read_keys[:, :count] = rounded.reshape(heads, count, size)
    read_values[:, :count] = _steps(values[:, :count], value_steps) * value_steps
    return read_keys, read_values


def _steps(numbers: F32, step: F32) -> F32:
    steps: F32 = np.rint(np.divide(numbers, step, out=np.zeros_like(numbers), where=step > 0))
    return steps
