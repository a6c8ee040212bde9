"""What a decoder keeps of the positions that it has seen: keys and values, and states where mixers have some."""

import weakref
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from mxconv.arch.config import ModelConfig
from mxconv.arrays import F32, I32, I64
from mxconv.engine.kv_pool import PAGE, Kept, KvDtype, KVPool
from mxconv.engine.state_cache import StateCache
from mxconv.engine.tree import Tree
from mxconv.errors import ModelError, PoolFull


class KeyRanges:
    """The greatest and the least of each number of the keys of a sequence's pages, by which drafts retrieve pages.

    Passes of drafts that retrieve fill them in, of pages that are whole, so that no page is read twice for them.
    """

    def __init__(self) -> None:
        self.num_pages = 0  # whose ranges are known, the first ones
        self._values: F32 = np.empty((0, 0, 2, 0, 0), np.float32)

    def array(self, cache: "KVCache") -> F32:
        """(attending layers, num_key_value_heads, 2, head_dim, pages), with room for all pages of the cache."""
        layers, _, heads, _, size = cache.pool.pages.page_shape
        room = cache.capacity // PAGE
        if self._values.shape[-1] < room:
            grown = np.empty((layers, heads, 2, size, max(room, 2 * self.num_pages)), np.float32)
            if self.num_pages:
                grown[..., : self.num_pages] = self._values[..., : self.num_pages]
            self._values = grown
        return self._values

    def cut(self, length: int) -> None:
        """Forget those of pages with positions from `length` on."""
        self.num_pages = min(self.num_pages, length // PAGE)


class KVCache:
    """The keys and values of one sequence, in pages of a pool that may be of many.

    `states` is what mixers with a state have; None where all layers attend. `slots` has, for each layer, its place
    among those of its kind.

    Positions 0..length-1 are valid. A forward pass writes after them and then advances; taking tokens back is
    `truncate`, and the next pass overwrites. A draft that shares its target's cache drafts after `length`,
    truncates, and leaves the target to write its own keys and values there. States go back with the positions, bit for
    bit, but not without limit: `reachable` says how far.

    Whole pages can be shared by sequences that begin alike: `publish` and `adopt`. A shared page is copied before it is
    written to. Models with states share nothing: the state after a prefix is in no page.

    `num_left_out` positions of the text are in no place: those of new rows are higher by as many. 0 unless set.

    Args:
        config: sizes.
        capacity: positions to make room for at first; there is more when it is used up, and nothing moves.
        pool: where the pages come from; None is a pool of its own, without limit. Pages go back with `release`, or
            when the cache is garbage.
        dtype: of keys and values in a pool of its own.

    Raises:
        ModelError: a pool of other sizes, or no memory.
        PoolFull: there is no room for `capacity`.
    """

    def __init__(
        self,
        config: ModelConfig,
        capacity: int = 0,
        pool: KVPool | None = None,
        dtype: KvDtype = "fp32",
    ) -> None:
        self.config, self.slots = config, config.slots
        attending, sizes = len(config.attentions), config.state_sizes
        self.states = None if sizes is None else StateCache(sizes, config.num_hidden_layers - attending)
        self.length = self.num_left_out = 0
        self.ranges = KeyRanges()
        self.pool = pool or KVPool(config, dtype=dtype)
        self.dtype: KvDtype = self.pool.dtype
        if not self.pool.fits(config):
            raise ModelError(
                f"KV cache: a pool of pages {self.pool.pages.page_shape}; {attending} layers, "
                f"{config.num_key_value_heads} heads and head size {config.head_dim} are required. "
                "Give each decoder a pool of its own."
            )
        self._pages: list[int] = []  # in the order of positions; changed in place: the finalizer holds the same list
        self._numbers: I32 | None = None  # the same as an array, until they change
        if pool is not None:
            weakref.finalize(self, pool.give_back, self._pages).atexit = False
        self.reserve(capacity)

    @property
    def capacity(self) -> int:
        """Positions that there is room for."""
        return len(self._pages) * PAGE

    @property
    def numbers(self) -> I32:
        """Its pages in the pool, in the order of their positions. A native pass writes after `length` itself."""
        if self._numbers is None:
            self._numbers = np.array(self._pages, np.int32)
        return self._numbers

    @property
    def arrays(self) -> tuple[F32, F32]:
        """Copies of keys and values, (attending layers, num_key_value_heads, capacity, head_dim) float32 each."""
        numbers, places = self._at(range(self.capacity))
        layers = [self.pool.pages.read(layer, numbers, places) for layer in range(len(self.config.attentions))]
        keys, values = (np.array([layer[part] for layer in layers], np.float32) for part in range(2))
        return keys, values

    def fits(self, config: ModelConfig) -> bool:
        """Whether a decoder of this configuration can use it."""
        return _sizes(config) == _sizes(self.config)

    def begin(self, tree: Tree, num_wanted: int) -> None:
        """Make room for the rows of a pass, of which the last `num_wanted` may be taken back; `advance` ends it.

        Raises:
            PoolFull: there is no room.
        """
        self.reserve(tree.num_rows)
        if self.states is not None:
            self.states.begin(self.length, tree, num_wanted)

    def reserve(self, num_tokens: int) -> None:
        """Make room for `num_tokens` positions after `length`. Raises PoolFull or ModelError where there is none."""
        self._make_own(self.length, self.length + num_tokens)

    def write(self, layer: int, keys: F32, values: F32) -> None:
        """Put one layer's keys and values, (num_tokens, heads, head_dim) each, after `length`, where there is room.

        A layer of fewer or smaller heads leaves the rest alone.
        """
        stop = self.length + len(keys)
        assert stop <= self.capacity
        numbers, places = self._at(range(self.length, stop))
        for part, rows in enumerate((keys, values)):
            self.pool.pages.write(self.slots[layer], part, numbers, places, rows)

    def read(self, layer: int, places: Sequence[int]) -> tuple[F32, F32]:
        """Keys and values at some places, (num_key_value_heads, len(places), head_dim) float32 each; copies."""
        return self.pool.pages.read(self.slots[layer], *self._at(places))

    def advance(self, num_tokens: int) -> None:
        """Declare the positions that all layers have written valid."""
        assert self.length + num_tokens <= self.capacity
        self.length += num_tokens
        if self.states is not None:
            self.states.commit()

    def keep(self, start: int, rows: Sequence[int]) -> None:
        """Keep some of the rows after `start`, a path of the tree that was evaluated there, and forget the rest.

        Raises:
            ModelError: a row that there is not, or rows, counted from `start`, that do not ascend.
            PoolFull: rows move into a page that others have, and there is none for a copy. Nothing has changed.
        """
        if any(row >= later for row, later in pairwise([-1, *rows, self.length - start])):
            raise ModelError(
                f"KV cache: rows {list(rows)} of {self.length - start}; ascending ones that are there are required."
            )
        moved = [(start + place, start + row) for place, row in enumerate(rows) if place != row]
        if moved:
            self._make_own(moved[0][0], start + len(rows))
            self.put([place for place, _ in moved], self.take([row for _, row in moved]))
        if self.states is not None:
            self.states.keep(start, rows)
        self.length = start + len(rows)
        self.ranges.cut(start)

    def take(self, places: Sequence[int]) -> Kept:
        """Copy what all layers have at some places, as it is kept, for `put`."""
        return self.pool.pages.take(*self._at(places))

    def put(self, places: Sequence[int], taken: Kept) -> None:
        """Put back what was taken. Shared pages still hold it: nothing is written to them."""
        numbers, offsets = self._at(places)
        own = np.array([not self.pool.is_shared(int(number)) for number in numbers], bool)
        self.pool.pages.put(numbers[own], offsets[own], taken[own])

    def reachable(self, length: int) -> int:
        """The most positions up to `length` that `truncate` can leave: `length`, or 0 where its states are gone.

        At least the 64 last rows can be taken back, and all rows of a pass that wanted logits.
        """
        return length if self.states is None else self.states.reachable(length)

    def truncate(self, length: int) -> None:
        """Forget the positions from `length` on; room for them stays.

        Raises:
            ModelError: there are fewer than `length`, or the states there are gone.
        """
        if not 0 <= length <= self.length:
            raise ModelError(
                f"KV cache: truncation to {length} positions; 0 to {self.length} are there. "
                "Truncate to a length that was reached."
            )
        if self.reachable(length) != length:
            raise ModelError(
                f"KV cache: truncation to {length} positions, whose states are gone; {self.length} are there. "
                "Truncate to 0 and evaluate the text again."
            )
        if self.states is not None:
            self.states.truncate(length)
        self.length = length
        self.ranges.cut(length)

    def release(self) -> None:
        """Forget everything, and give back all pages."""
        self.truncate(0)
        self._cut(0)

    def publish(self, tokens: Sequence[int]) -> None:
        """Let the pool keep the whole pages of a text for others that begin alike, also when this one has ended.

        Publish what no pass will take back. Pages that the pool knows already replace this cache's own: the same
        decoder has written the same bits there. Models with states publish nothing. `tokens` are those of the settled
        positions from 0 on, all evaluated by the pool's decoder.
        """
        if self.states is not None or self.num_left_out:
            return
        count = min(len(tokens), self.length) // PAGE
        self._pages[:count] = self.pool.publish(tokens[: count * PAGE], self._pages[:count])
        self._numbers = None

    def adopt(self, tokens: Sequence[int]) -> int:
        """Begin with the pages of a text that was published and begins alike.

        Returns:
            How many first tokens need not be evaluated, a multiple of PAGE and never all; 0 for models with states.
        """
        assert self.length == 0 and self.num_left_out == 0, "an empty cache adopts"
        if self.states is not None:
            return 0
        pages = self.pool.adopt(tokens[:-1])
        self._cut(0)
        self._pages += pages
        self.length = len(pages) * PAGE
        return self.length

    def _at(self, places: Sequence[int]) -> tuple[I32, I64]:
        """The pages of some places, and where they are in them."""
        positions = np.array(places, np.int64)
        return self.numbers[positions // PAGE], positions % PAGE

    def _cut(self, count: int) -> None:
        """Give back all pages but the first."""
        dropped = self._pages[count:]
        del self._pages[count:]
        self._numbers = None
        self.pool.give_back(dropped)

    def _make_own(self, start: int, stop: int) -> None:
        """Hold pages for positions up to `stop`, unshared from `start` on: shared ones are copied."""
        pool, pages, num_needed = self.pool, self._pages, -(-stop // PAGE)
        missing = max(num_needed - len(pages), 0)
        held = range(start // PAGE, min(num_needed, len(pages)))
        shared = [index for index in held if pool.is_shared(pages[index])]
        if not missing and not shared:
            return
        try:
            taken = pool.take(missing + len(shared))
        except PoolFull:
            spared = [index for index in shared if pool.is_kept_for(pages[index])]
            if not spared:
                raise
            shared = [index for index in shared if index not in spared]
            taken = pool.take(missing + len(shared))
            for index in spared:  # of the pool and this sequence alone: it need not be kept
                pool.forget(pages[index])
        for index, page in zip(shared, taken, strict=False):
            pool.pages.copy(pages[index], page)
            pool.give_back([pages[index]])
            pages[index] = page
        pages += taken[len(shared) :]
        self._numbers = None


def _sizes(config: ModelConfig) -> tuple[object, ...]:
    heads = len(config.attentions), config.num_key_value_heads, config.head_dim
    return config.num_hidden_layers, *heads, config.state_sizes
