"""A KV cache lent for a pass over text that it holds already."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from mxconv.engine.cache import KVCache


@contextmanager
def borrowed(cache: KVCache, start: int, count: int) -> Iterator[KVCache]:
    """The cache cut to `start` positions, for a pass over `count` tokens; afterwards it is as it was, bit for bit.

    `start` is reachable. What a borrower's rows do to states is undone as everywhere; the owner's rows are kept aside.
    """
    length = cache.length
    states = nullcontext() if cache.states is None else cache.states.lent(start, length)
    rows = range(start, min(start + count, cache.capacity))
    kept = cache.take(rows)
    try:
        with states:
            cache.truncate(start)
            try:
                yield cache
            finally:
                cache.put(rows, kept)
                cache.truncate(start)
    finally:
        cache.advance(length - start)
