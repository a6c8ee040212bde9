"""The arrays of a shard as they are completed, in any order."""

import threading
from collections.abc import Collection

from mxconv.conversion.layout import Shard


class Arrivals:
    """How many bytes, from the beginning of a shard, are there."""

    def __init__(self, shard: Shard) -> None:
        """The header is there."""
        ends = [*sorted(shard.offsets.values()), shard.num_bytes][1:] or [shard.num_bytes]
        names = sorted(shard.offsets, key=lambda name: shard.offsets[name])
        self._missing = set(names)
        self._ends = [(end, name) for end, name in zip(ends, names, strict=False)][::-1]  # the next one last
        self._lock = threading.Lock()
        self.num_bytes = min(shard.offsets.values(), default=shard.num_bytes)

    def complete(self, names: Collection[str]) -> None:
        """Note that these arrays are written; others than the shard's do not matter."""
        with self._lock:
            self._missing.difference_update(names)
            while self._ends and self._ends[-1][1] not in self._missing:
                self.num_bytes = self._ends.pop()[0]
