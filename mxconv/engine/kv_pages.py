"""The memory of keys and values: a few arrays of many pages, so that nothing moves when there are to be more."""

from math import prod
from typing import Any, Literal, get_args

import numpy as np

from mxconv.arrays import F32, I32, I64, U16, zeros
from mxconv.codecs.float16 import BF16, FP16, FloatFormat
from mxconv.errors import ModelError

KvDtype = Literal["fp32", "bf16", "fp16"]
KV_DTYPES: tuple[KvDtype, ...] = get_args(KvDtype)
FORMATS: dict[KvDtype, FloatFormat | None] = {"fp32": None, "bf16": BF16, "fp16": FP16}  # how the 16-bit ones round
Kept = F32 | U16  # values, or patterns of 16-bit floats
PAGE = 64  # positions: whole chunks of attention, so that a chunk of a text from its first position on lies in one


class Slabs:
    """Pages by their numbers, each (attending layers, 2, num_heads, PAGE, head_dim), keys before values.

    In memory a page is no piece: an array holds head after head, each of all its pages in the order of their numbers.
    So a text whose pages follow each other is read as if there were none. `num_heads` and `head_dim` are those of the
    layer that has most. What is written is rounded to nearest in `dtype`, ties to even, and read as float32.
    """

    def __init__(self, num_layers: int, num_heads: int, head_dim: int, dtype: KvDtype) -> None:
        self.page_shape = num_layers, 2, num_heads, PAGE, head_dim
        self.dtype = dtype
        self._format = FORMATS[dtype]
        self._kind: np.dtype[Any] = np.dtype(np.float32 if self._format is None else np.uint16)
        self.arrays: list[Kept] = []  # float32, or 16-bit patterns
        # (num_layers, 2, num_heads, num_pages, PAGE, head_dim) each
        self._firsts = [0]  # the number of each array's first page, and one past the last

    @property
    def num_pages(self) -> int:
        return self._firsts[-1]

    @property
    def page_bytes(self) -> int:
        return prod(self.page_shape) * self._kind.itemsize

    def add(self, num_pages: int) -> None:
        """More pages, of zeros.

        Raises:
            ModelError: there is no memory for them.
        """
        layers, parts, heads, places, size = self.page_shape
        shape = layers, parts, heads, num_pages, places, size
        try:
            self.arrays.append(zeros(shape, self._kind))
        except (MemoryError, ValueError) as error:
            raise ModelError(
                f"KV cache: no memory for {num_pages * PAGE} positions, shape {shape} in {self.dtype}; "
                "less is required. Shorten the prompt or generate fewer tokens."
            ) from error
        self._firsts.append(self.num_pages + num_pages)

    def copy(self, source: int, target: int) -> None:
        """One page onto another."""
        self._page(target)[:] = self._page(source)

    def write(self, layer: int, part: int, numbers: I32, places: I64, rows: F32) -> None:
        """Put rows, (n, heads, size), into a layer's keys (part 0) or values (1), at n places of numbered pages.

        They may have fewer and smaller heads; what is beside them stays.
        """
        _, heads, size = rows.shape
        kept = rows if self._format is None else self._format.encode(rows)
        for chosen, array, pages in self._split(numbers):
            array[layer, part][:heads, pages, places[chosen], :size] = kept[chosen].transpose(1, 0, 2)

    def read(self, layer: int, numbers: I32, places: I64) -> tuple[F32, F32]:
        """A layer's keys and values, (num_heads, n, head_dim) float32 each, copies."""
        _, _, heads, _, size = self.page_shape
        found = np.empty((2, heads, len(numbers), size), self._kind)
        for chosen, array, pages in self._split(numbers):
            found[:, :, chosen] = array[layer][:, :, pages, places[chosen]]
        keys, values = found if self._format is None else self._format.decode(found)
        return keys, values

    def take(self, numbers: I32, places: I64) -> Kept:
        """Copies of what all layers keep at some places, (n, num_layers, 2, num_heads, head_dim), as it is."""
        layers, parts, heads, _, size = self.page_shape
        found = np.empty((len(numbers), layers, parts, heads, size), self._kind)
        for chosen, array, pages in self._split(numbers):
            found[chosen] = array[:, :, :, pages, places[chosen]].transpose(3, 0, 1, 2, 4)
        return found

    def put(self, numbers: I32, places: I64, taken: Kept) -> None:
        """Write what `take` returned."""
        for chosen, array, pages in self._split(numbers):
            array[:, :, :, pages, places[chosen]] = taken[chosen].transpose(1, 2, 3, 0, 4)

    def _page(self, number: int) -> Kept:
        index = next(index for index, first in enumerate(self._firsts[1:]) if number < first)
        page: Kept = self.arrays[index][:, :, :, number - self._firsts[index]]
        return page

    def _split(self, numbers: I32) -> list[tuple[I64, Kept, I32]]:
        """For each array with any of these pages: which of them, the array, and their numbers in it."""
        found = []
        for array, first, stop in zip(self.arrays, self._firsts, self._firsts[1:], strict=False):
            chosen = np.flatnonzero((numbers >= first) & (numbers < stop))
            if len(chosen):
                found.append((chosen, array, numbers[chosen] - np.int32(first)))
        return found
