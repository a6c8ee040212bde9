"""Counts of n-grams as sorted arrays: exact while they fit, and the rarest dropped where they do not."""

import numpy as np

from mxconv.arrays import I64, U64

BUFFERED = 1 << 21  # n-grams sorted at once


class NgramCounts:
    """How often each n-gram occurs. An n-gram is one integer, its first token highest.

    Args:
        max_held: distinct n-grams to keep. At more, those of the lowest counts are dropped until half are left, so
            that memory is bounded; what comes later for one of them is counted from 0.

    Source:
        Dropping what is rare between batches is lossy counting (Manku and Motwani, VLDB 2002), without its bound.
    """

    def __init__(self, max_held: int) -> None:
        self.max_held = max_held
        self.num_pruned = 0  # distinct n-grams dropped, each time counted
        self._keys: U64 = np.zeros(0, np.uint64)
        self._counts: I64 = np.zeros(0, np.int64)
        self._buffer: list[U64] = []
        self._num_buffered = 0

    def add(self, ngrams: U64) -> None:
        """Count occurrences, (n,)."""
        if not len(ngrams):
            return
        self._buffer.append(ngrams)
        self._num_buffered += len(ngrams)
        if self._num_buffered >= BUFFERED:
            self._merge()

    def sorted(self) -> tuple[U64, I64]:
        """Distinct n-grams, ascending, and their counts."""
        self._merge()
        return self._keys, self._counts

    def _merge(self) -> None:
        if not self._num_buffered:
            return
        keys, counts = np.unique(np.concatenate(self._buffer), return_counts=True)
        self._buffer, self._num_buffered = [], 0
        places = np.searchsorted(self._keys, keys)
        is_known = np.zeros(len(keys), np.bool_)
        inside = places < len(self._keys)
        is_known[inside] = self._keys[places[inside]] == keys[inside]
        self._counts[places[is_known]] += counts[is_known]
        places, keys, counts = places[~is_known], keys[~is_known], counts[~is_known]
        self._keys = np.insert(self._keys, places, keys)
        self._counts = np.insert(self._counts, places, counts)
        if len(self._keys) > self.max_held:
            self._prune()

    def _prune(self) -> None:
        """Drop all n-grams of the lowest counts, as many counts as it takes."""
        num_dropped = len(self._keys) - self.max_held // 2
        threshold = np.partition(self._counts, num_dropped - 1)[num_dropped - 1]
        keep = self._counts > threshold
        self.num_pruned += len(keep) - int(keep.sum())
        self._keys, self._counts = self._keys[keep], self._counts[keep]
