"""The pages that one sequence has of a pool, in the order of their positions."""

from collections.abc import Sequence

import numpy as np

from mxconv.arrays import I32, I64
from mxconv.engine.pages.pool import KVPool
from mxconv.engine.pages.slabs import PAGE, Kept
from mxconv.errors import PoolFull


class HeldPages:
    """Page i holds the positions from i * PAGE on.

    Args:
        pool: where they come from and go back to.
    """

    def __init__(self, pool: KVPool) -> None:
        self.pool = pool
        self.in_order: list[int] = []  # changed in place: whoever gives it back to the pool has the same one
        self._numbers: I32 | None = None

    def __len__(self) -> int:
        return len(self.in_order)

    @property
    def numbers(self) -> I32:
        """Their numbers in the pool."""
        if self._numbers is None:
            self._numbers = np.array(self.in_order, np.int32)
        return self._numbers

    def at(self, places: Sequence[int]) -> tuple[I32, I64]:
        """The pages of some places, and where they are in them."""
        positions = np.array(places, np.int64)
        return self.numbers[positions // PAGE], positions % PAGE

    def make_own(self, start: int, stop: int) -> None:
        """Have pages for positions up to `stop`, and nobody else those from `start` on: they are copied if need be.

        Raises:
            PoolFull: there are not enough. Nothing has changed.
            ModelError: there is no memory for them.
        """
        missing = max(-(-stop // PAGE) - len(self), 0)
        held = range(start // PAGE, min(-(-stop // PAGE), len(self)))
        shared = [index for index in held if self.pool.is_shared(self.in_order[index])]
        if not missing and not shared:
            return
        try:
            taken = self.pool.take(missing + len(shared))
        except PoolFull:
            spared = [index for index in shared if self.pool.is_kept_for(self.in_order[index])]
            if not spared:
                raise
            shared = [index for index in shared if index not in spared]
            taken = self.pool.take(missing + len(shared))
            for index in spared:  # of the pool and this sequence alone: it need not be kept
                self.pool.forget(self.in_order[index])
        for index, page in zip(shared, taken, strict=False):
            self.pool.slabs.copy(self.in_order[index], page)
            self.pool.give_back([self.in_order[index]])
            self.in_order[index] = page
        self.in_order += taken[len(shared) :]
        self._numbers = None

    def cut(self, count: int) -> None:
        """Give back all but the first."""
        dropped = self.in_order[count:]
        del self.in_order[count:]
        self._numbers = None
        self.pool.give_back(dropped)

    def publish(self, tokens: Sequence[int]) -> None:
        """Let the pool keep those of a text for others that begin alike; pages that it knows already take their place.

        Args:
            tokens: of whole pages, from position 0 on.
        """
        count = len(tokens) // PAGE
        self.in_order[:count] = self.pool.publish(tokens, self.in_order[:count])
        self._numbers = None

    def adopt(self, tokens: Sequence[int]) -> int:
        """Take the pages that the pool has of a text's beginning, in place of all that are held; how many these are."""
        pages = self.pool.adopt(tokens)
        self.cut(0)
        self.in_order += pages
        self._numbers = None
        return len(pages)

    def take(self, places: Sequence[int]) -> Kept:
        """What all layers have at some places, as it is kept, for `put`."""
        return self.pool.slabs.take(*self.at(places))

    def put(self, places: Sequence[int], taken: Kept) -> None:
        """Put back what was taken. What lies in a page that others have too is there still: nobody writes to such."""
        numbers, offsets = self.at(places)
        own = np.array([not self.pool.is_shared(int(number)) for number in numbers], bool)
        self.pool.slabs.put(numbers[own], offsets[own], taken[own])
