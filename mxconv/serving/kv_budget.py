"""What the caches of running sequences take, and whether that is within a limit."""

from collections.abc import Iterable
from collections.abc import Sequence as Listed

from mxconv.model.cache import KVCache
from mxconv.model.tree import MOST_ROWS

FIRST_POSITIONS = 64  # room of a cache at first; it doubles when it is used up


class KvBudget:
    """A limit in bytes on keys and values, counted by the room that caches make for them.

    Args:
        caches: one of each kind that every sequence has, of all levels.
        num_bytes: the limit; None is none.
    """

    def __init__(self, caches: Listed[KVCache], num_bytes: int | None) -> None:
        self.num_bytes = num_bytes
        self._position_bytes = sum(array.nbytes // cache.capacity for cache in caches for array in cache.arrays)

    def bytes_of(self, num_tokens: int) -> int:
        """Of a sequence whose caches take in so many tokens and the rows of a round."""
        positions = FIRST_POSITIONS
        while positions < num_tokens + MOST_ROWS:
            positions *= 2
        return positions * self._position_bytes

    def holds(self, lengths: Iterable[int]) -> bool:
        """Whether sequences of so many tokens fit side by side."""
        return self.num_bytes is None or sum(map(self.bytes_of, lengths)) <= self.num_bytes
