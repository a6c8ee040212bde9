"""The pages that running sequences may take, of all levels, and whether more would fit."""

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Listed

from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.engine.kv_pool import PAGE, KVPool
from mxconv.engine.state_cache import most_bytes
from mxconv.engine.tree import MOST_ROWS
from mxconv.errors import ModelError
from mxconv.speculation.hierarchy import Hierarchy


class KvBudget:
    """A pool of pages for each model with a cache of its own, within one limit in bytes; None is no limit.

    A sequence has a place for each of its tokens in every cache, one of each of `others` too, which are not shared, and
    recurrent states of a constant size. What sequences share is counted once, where it is shared already.
    """

    def __init__(self, decoders: Listed[Decoder], others: Listed[KVCache], num_bytes: int | None) -> None:
        self.num_bytes = num_bytes
        sizes = [KVPool(decoder.config, dtype=decoder.kv_dtype).page_bytes for decoder in decoders]
        self._page_bytes = sum(sizes) + sum(cache.pool.page_bytes for cache in others)
        self._most_pages = None if num_bytes is None or not self._page_bytes else num_bytes // self._page_bytes
        self._state_bytes = sum(map(_state_bytes, decoders))  # of a sequence
        self._has_others = bool(others)
        self._pools = {
            id(decoder): KVPool(
                decoder.config, None if self._most_pages is None else max(self._most_pages, 1) * size, decoder.kv_dtype
            )
            for decoder, size in zip(decoders, sizes, strict=True)
        }

    def pool_of(self, decoder: Decoder) -> KVPool:
        """The pool in which the caches of a model have their pages."""
        return self._pools[id(decoder)]

    def bytes_of(self, num_tokens: int) -> int:
        """Bytes of a sequence alone whose caches hold so many tokens and the rows of a round."""
        return _pages_of(num_tokens) * self._page_bytes + self._state_bytes

    def num_shared(self, tokens: list[int]) -> int:
        """Pages at the beginning of a text that running sequences have, in every cache."""
        if self._has_others:
            return 0
        found = ((pool, pool.prefixes.find(tokens[:-1])) for pool in self._pools.values())
        return min((sum(pool.is_shared(page) for page in pages) for pool, pages in found), default=0)

    def holds(self, lengths: Iterable[int], num_shared: int = 0) -> bool:
        """Whether sequences of so many tokens fit side by side, where one that has no pages yet can share some."""
        if self.num_bytes is None:
            return True
        saved = 0 if self._has_others else min((pool.num_saved for pool in self._pools.values()), default=0)
        return sum(map(self.bytes_of, lengths)) - (saved + num_shared) * self._page_bytes <= self.num_bytes


def divided(num_bytes: int, hierarchies: Mapping[str, Hierarchy]) -> dict[str, int]:
    """Shares of one limit by models' names, in proportion to the shortest sequence of each: all hold as many tokens.

    Raises:
        ModelError: a share does not hold one sequence.
    """
    budgets = {name: KvBudget(each.cached_decoders(), each.reader_caches(), None) for name, each in hierarchies.items()}
    least = {name: budget.bytes_of(1) for name, budget in budgets.items()}
    total = sum(least.values())
    shares = {name: num_bytes * need // total for name, need in least.items()}
    for name, share in shares.items():
        if share < least[name]:
            raise ModelError(
                f"--kv-bytes {num_bytes}: {share:,} bytes for {name!r}; a sequence takes at least {least[name]:,}. "
                f"Give at least {total:,}."
            )
    return shares


def _state_bytes(decoder: Decoder) -> int:
    sizes, num_layers = decoder.config.state_sizes, decoder.config.num_hidden_layers
    return 0 if sizes is None else most_bytes(sizes, num_layers - len(decoder.config.attentions))


def _pages_of(num_tokens: int) -> int:
    return -(-(num_tokens + MOST_ROWS) // PAGE)
