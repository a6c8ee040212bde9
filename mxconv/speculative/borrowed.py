"""A KV cache lent for a pass over text that it holds already."""

from collections.abc import Iterator
from contextlib import contextmanager

from mxconv.model.cache import KVCache


@contextmanager
def borrowed(cache: KVCache, start: int, count: int) -> Iterator[KVCache]:
    """The cache cut to `start` positions, for a pass over `count` tokens; afterwards it is as it was, bit for bit."""
    length = cache.length
    kept = [array[:, :, start : start + count].copy() for array in cache.arrays]
    cache.truncate(start)
    try:
        yield cache
    finally:
        for array, own in zip(cache.arrays, kept, strict=True):
            array[:, :, start : start + count] = own
        cache.truncate(start)
        cache.advance(length - start)
