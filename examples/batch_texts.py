"""Texts of any length whose caches hold random keys and values: batch_maps.py asks for time alone."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.engine.kv_pages import FORMATS, PAGE
from mxconv.errors import MxconvError
from mxconv.serving.joint_passes import JointPasses
from mxconv.serving.kv_budget import KvBudget


class Texts:
    """Some sequences side by side, with pages of one pool as those of the serving engine.

    Args:
        decoder: of the caches; drafts that share its cache write behind its positions.
        count: sequences.
        length: positions of each.
        room: further ones for a round.
        kv_bytes: that all may take.

    Raises:
        MxconvError: they do not fit, or the model has recurrent states.
    """

    def __init__(self, decoder: Decoder, count: int, length: int, room: int, kv_bytes: int) -> None:
        if decoder.config.state_sizes is not None:
            raise MxconvError(
                f"{decoder.name}: layers with recurrent states; a model that attends in all layers is required. "
                "Take another package."
            )
        self._budget = KvBudget([decoder], [], kv_bytes)
        if not self._budget.holds([length + room] * count):
            needed = count * self._budget.bytes_of(length + room)
            raise MxconvError(
                f"KV caches: {needed:,} bytes for {count} sequences of {length} positions in {decoder.kv_dtype}; at "
                f"most {kv_bytes:,} are allowed. Name fewer sequences or positions, --kv-dtype bf16, or --kv-bytes."
            )
        self.passes = [JointPasses(self._budget) for _ in range(count)]
        self._caches = [passes.new_cache(decoder) for passes in self.passes]
        for cache in self._caches:
            _fill(cache, length, room)

    @contextmanager
    def of(self, batch: int, context: int) -> Iterator[Sequence[KVCache]]:
        """The first caches, cut to a context; whatever is evaluated behind it is forgotten."""
        caches = self._caches[:batch]
        lengths = [cache.length for cache in caches]
        for cache in caches:
            cache.truncate(context)
        try:
            yield caches
        finally:
            for cache, length in zip(caches, lengths, strict=True):
                cache.truncate(context)
                cache.advance(length - context)  # what a round wrote there is as good as what was


def _fill(cache: KVCache, length: int, room: int) -> None:
    """All positions from one page of random numbers: attention's time does not hang on them."""
    shape = PAGE, cache.num_attending, 2, cache.num_key_value_heads, cache.head_dim
    values = np.random.default_rng(0).standard_normal(shape, np.float32)
    float_format = FORMATS[cache.dtype]
    kept = values if float_format is None else float_format.encode(values)
    cache.reserve(length + room)
    for start in range(0, length, PAGE):
        stop = min(start + PAGE, length)
        cache.put(range(start, stop), kept[: stop - start])
    cache.advance(length)


def with_positions(decoder: Decoder, count: int) -> Decoder:
    """The same with at least so many positions: its rotations go on beyond those that it was trained for.

    Raises:
        MxconvError: its positions are learned, so that there are no others.
    """
    config = decoder.config
    if count <= config.max_position_embeddings:
        return decoder
    if config.positions is not None:
        raise MxconvError(
            f"{decoder.name}: {config.max_position_embeddings} learned positions; {count} are required. Name shorter "
            "contexts."
        )
    made = copy.copy(decoder)
    made.config = replace(config, max_position_embeddings=count)
    return made
