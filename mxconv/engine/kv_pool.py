"""Pages for the caches of many sequences, within a budget of bytes; texts that begin alike share them."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import islice
from math import prod
from typing import Any, Literal, get_args

import numpy as np

from mxconv.arch.config import ModelConfig
from mxconv.arrays import F32, I32, I64, U16, zeros
from mxconv.codecs.float16 import BF16, FP16, FloatFormat
from mxconv.errors import ModelError, PoolFull

KvDtype = Literal["fp32", "bf16", "fp16"]
KV_DTYPES: tuple[KvDtype, ...] = get_args(KvDtype)
FORMATS: dict[KvDtype, FloatFormat | None] = {"fp32": None, "bf16": BF16, "fp16": FP16}  # how the 16-bit ones round
Kept = F32 | U16  # values, or patterns of 16-bit floats
PAGE = 64  # positions: whole chunks of attention, so that a chunk of a text from its first position on lies in one
ROOT = 0  # precedes the first page of a text
Link = tuple[int, tuple[int, ...]]
"""A page of a text: the number of the link before it, or ROOT, and its PAGE tokens."""


class PageArrays:
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


class Prefixes:
    """A chain of links a text: each page is named by its tokens and by the link before it, to the beginning.

    A dictionary hashes links and then compares them, tokens and all, so that no two texts are ever taken for one.
    Pages are in the order of their last use; of one text the first counts as used after the later ones, so that a
    chain goes from its end.
    """

    def __init__(self) -> None:
        self._numbers = 0  # of links, ever
        self._known: OrderedDict[Link, tuple[int, int]] = OrderedDict()  # to (number, page)
        self._by_page: dict[int, Link] = {}

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, page: int) -> bool:
        return page in self._by_page

    def find(self, tokens: Sequence[int]) -> list[int]:
        """The pages of the longest known beginning of a text, of whole pages; now used last."""
        links: list[Link] = []
        before = ROOT
        for start in range(0, len(tokens) - PAGE + 1, PAGE):
            link = before, tuple(tokens[start : start + PAGE])
            if link not in self._known:
                break
            links.append(link)
            before = self._known[link][0]
        return self._used(links)

    def add(self, tokens: Sequence[int], pages: Sequence[int]) -> list[int]:
        """Make the pages of a text's first tokens known.

        Returns:
            The pages by which these tokens are known: others than those given where they were known already.
        """
        links: list[Link] = []
        before = ROOT
        for index, page in enumerate(pages):
            link = before, tuple(tokens[index * PAGE : (index + 1) * PAGE])
            if link not in self._known:
                if page in self._by_page:  # known as the page of a text whose beginning was forgotten
                    break
                self._numbers += 1
                self._known[link], self._by_page[page] = (self._numbers, page), link
            links.append(link)
            before = self._known[link][0]
        return [*self._used(links), *pages[len(links) :]]

    def forget(self, page: int) -> None:
        """Drop a page. Later pages of its text are not found any more, and go when they are least recently used."""
        del self._known[self._by_page.pop(page)]

    def least_recently_used(self) -> Iterator[int]:
        """All pages, that which was used last comes last."""
        return (page for _, page in self._known.values())

    def _used(self, links: Sequence[Link]) -> list[int]:
        """The pages of a chain, which is used now."""
        for link in reversed(links):
            self._known.move_to_end(link)
        return [self._known[link][1] for link in links]


class KVPool:
    """Pages of PAGE positions each, of all layers, and who has them.

    A page has owners: caches, and the pool itself where it keeps the page for the next text with the same beginning.
    A page with several is never written to. One without owners is free; one that the pool alone owns becomes free
    when pages run out, least recently used first.

    A pool is of one decoder: another one writes other values for the same tokens, even with the same sizes.
    It is not for several threads at once.

    Args:
        config: of the decoder.
        num_bytes: that its pages take at most; None is no limit, and what is kept for other texts stays for good.
        dtype: of keys and values.

    Raises:
        ModelError: not a page fits into `num_bytes`.
    """

    def __init__(self, config: ModelConfig, num_bytes: int | None = None, dtype: KvDtype = "fp32") -> None:
        self.dtype: KvDtype = dtype
        self.pages = PageArrays(len(config.attentions), config.num_key_value_heads, config.head_dim, dtype)
        self.prefixes = Prefixes()
        self.most_pages: int | None = None
        if num_bytes is not None and self.page_bytes:
            self.most_pages = num_bytes // self.page_bytes
            if self.most_pages < 1:
                raise ModelError(
                    f"KV cache: {num_bytes} bytes; a page of {PAGE} positions takes {self.page_bytes} of "
                    f"{config.model_type} in {dtype}. Give more bytes, or a smaller dtype."
                )
        self._num_owners: list[int] = []  # by page
        self._free: list[int] = []

    @property
    def page_bytes(self) -> int:
        return self.pages.page_bytes

    @property
    def num_used(self) -> int:
        """Pages that have owners."""
        return self.pages.num_pages - len(self._free)

    @property
    def num_kept(self) -> int:
        """Pages that the pool alone owns: `take` may free them."""
        return sum(self._num_owners[page] == 1 for page in self.prefixes.least_recently_used())

    @property
    def num_saved(self) -> int:
        """How many more pages its caches would have if each had its own."""
        return sum(
            max(count - 1 - (page in self.prefixes), 0) for page, count in enumerate(self._num_owners) if count > 1
        )

    def fits(self, config: ModelConfig) -> bool:
        """Whether its pages have the sizes of a configuration."""
        layers, _, heads, _, size = self.pages.page_shape
        return (layers, heads, size) == (len(config.attentions), config.num_key_value_heads, config.head_dim)

    def take(self, count: int) -> list[int]:
        """Pages with one owner, the caller.

        Raises:
            PoolFull: there are fewer, even counting those that the pool alone owns. Nothing has changed.
            ModelError: there is no memory for them.
        """
        missing = count - len(self._free)
        if missing > 0:
            room = missing if self.most_pages is None else self.most_pages - self.pages.num_pages
            kept = (page for page in self.prefixes.least_recently_used() if self._num_owners[page] == 1)
            spare = list(islice(kept, max(missing - room, 0)))
            if len(spare) < missing - room:
                raise PoolFull(
                    f"KV cache: {count} more pages of {PAGE} positions; {count - missing + max(room, 0) + len(spare)} "
                    f"of {self.most_pages} can be had. Wait until a sequence ends, or give the pool more bytes."
                )
            if room > 0:
                self._grow(min(missing, room))
            for page in spare:
                self.forget(page)
        pages = [self._free.pop() for _ in range(count)]
        for page in pages:
            self._num_owners[page] = 1
        return pages

    def own(self, pages: Sequence[int]) -> None:
        """One more owner for each."""
        for page in pages:
            assert self._num_owners[page] > 0
            self._num_owners[page] += 1

    def give_back(self, pages: Sequence[int]) -> None:
        """One owner less for each."""
        for page in pages:
            assert self._num_owners[page] > 0
            self._num_owners[page] -= 1
            if self._num_owners[page] == 0:
                self._free.append(page)

    def is_shared(self, page: int) -> bool:
        """Whether it has several owners, so that it is never written to."""
        return self._num_owners[page] > 1

    def is_kept_for(self, page: int) -> bool:
        """Whether the pool is its only owner but one."""
        return self._num_owners[page] == 2 and page in self.prefixes

    def publish(self, tokens: Sequence[int], pages: Sequence[int]) -> list[int]:
        """Keep the caller's pages of a text's first tokens for other texts that begin alike.

        Returns:
            The caller's pages from here on: others that hold the same where there are such.
        """
        new = [page for page in pages if page not in self.prefixes]
        known = self.prefixes.add(tokens, pages)
        self.own([page for page in new if page in self.prefixes])
        replaced = [(mine, other) for mine, other in zip(pages, known, strict=True) if mine != other]
        self.own([other for _, other in replaced])
        self.give_back([mine for mine, _ in replaced])
        return known

    def adopt(self, tokens: Sequence[int]) -> list[int]:
        """Pages that hold the beginning of a text, and have one more owner now."""
        pages = self.prefixes.find(tokens)
        self.own(pages)
        return pages

    def forget(self, page: int) -> None:
        """Keep a page no longer for other texts."""
        self.prefixes.forget(page)
        self.give_back([page])

    def _grow(self, count: int) -> None:
        """At least so many more, and up to twice as many as there are, so that arrays stay few."""
        first = self.pages.num_pages
        more = max(count, first)
        if self.most_pages is not None:
            more = min(more, self.most_pages - first)
        self.pages.add(more)
        self._num_owners += [0] * more
        self._free += range(first + more - 1, first - 1, -1)
