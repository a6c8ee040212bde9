"""Latent attention of a layer, over a cache of latent vectors.

A head's key is a product of its matrix with the latent vector, so that a query times the key is the query times that
matrix, once a row, times the latent vector; and likewise a head's values are taken from the mean of latent vectors.
"""

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from mxconv.arch.description import LatentAttention
from mxconv.arrays import F32
from mxconv.codecs.fold import fold_in_place
from mxconv.engine.attention import attend
from mxconv.engine.attention_window import SinkWindow, places_seen
from mxconv.engine.rope import Positions, RotaryEmbedding, rotate
from mxconv.engine.sequence_rows import SequenceRows, spans
from mxconv.engine.weights import CheckedWeights, WeightedPart


class WeightedLatentAttention(WeightedPart):
    """Latent attention with its matrices and norms.

    `key_up` is (num_heads, plain_size, latent_size) float32 and `value_up` (num_heads, value_size, latent_size), both
    rows of the matrix `up`. Arguments are those of `WeightedAttention`.
    """

    def __init__(self, weights: CheckedWeights, parts: LatentAttention, index: int, sizes: tuple[int, int]) -> None:
        self.index = index
        self.parts = parts
        taken, hidden_size = sizes
        heads, of_head = parts.num_heads, parts.plain_size + parts.value_size
        self.query_down = weights.projection(parts.query_down, parts.query_rank, taken) if parts.query_down else None
        self.query_norm = weights.norm(parts.query_norm if parts.query_down else None, parts.query_rank)
        self.query = weights.projection(parts.query, heads * (parts.plain_size + parts.rotated_size), parts.query_rank)
        self.down = weights.projection(parts.down, parts.head_dim, taken)
        self.latent_norm = weights.norm(parts.latent_norm, parts.latent_size)
        self.up = weights.projection(parts.up, heads * of_head, parts.latent_size)
        both = self.up.matrix.rows(np.arange(heads * of_head)).reshape(heads, of_head, parts.latent_size)
        self.key_up = np.ascontiguousarray(both[:, : parts.plain_size])
        self.value_up = np.ascontiguousarray(both[:, parts.plain_size :])
        self.output = weights.projection(parts.output, hidden_size, heads * parts.value_size)

    @cached_property
    def rotary(self) -> RotaryEmbedding:
        return RotaryEmbedding(self.parts.rope, self.parts.rotated_size)

    def __call__(
        self, h: F32, sequences: Sequence[SequenceRows], positions: Positions, pattern: SinkWindow | None = None
    ) -> F32:
        """Compute what attention adds to rows, (num_tokens, hidden_size), from its input for them.

        Writes their latent vectors, and the keys that rotate, to the caches in the place of keys.
        """
        parts = self.parts
        queries, keys = self._queries(h, positions), self._keys(h, positions)
        mixed = np.empty((len(h), parts.num_heads, parts.value_size), np.float32)
        for rows, span in zip(sequences, spans(rows.num_rows for rows in sequences), strict=True):
            rows.cache.write(self.index, keys[span], keys[span, :, :0])
            for row in range(rows.num_rows):
                seen, _ = rows.cache.read(self.index, places_seen(row, rows, parts.window, pattern=pattern))
                seen = seen[:1, :, : parts.head_dim]
                place = span.start + row
                mean = attend(queries[place], seen, seen[:, :, : parts.latent_size], parts.scale)
                mixed[place] = fold_in_place(mean[:, None, :] * self.value_up)
        return self.output(mixed.reshape(len(h), -1))

    def _queries(self, h: F32, positions: Positions) -> F32:
        """As they meet what the cache holds, (num_tokens, num_heads, latent_size + rotated_size)."""
        parts = self.parts
        if self.query_down is not None and self.query_norm is not None:
            h = self.query_norm(self.query_down(h))
        heads = self.query(h).reshape(len(h), parts.num_heads, -1)
        queries = np.empty((len(h), parts.num_heads, parts.head_dim), np.float32)
        for row, plain in zip(queries, heads[:, :, : parts.plain_size], strict=True):
            row[:, : parts.latent_size] = fold_in_place(plain[:, :, None] * self.key_up, axis=1)
        queries[:, :, parts.latent_size :] = self._rotated(heads[:, :, parts.plain_size :], positions)
        return queries

    def _keys(self, h: F32, positions: Positions) -> F32:
        """What a cache holds, (num_tokens, 1, latent_size + rotated_size)."""
        rows, size = self.down(h), self.parts.latent_size
        latent = self.latent_norm(rows[:, :size].copy())
        rotated = self._rotated(rows[:, None, size:], positions)
        return np.concatenate([latent[:, None], rotated], axis=2)

    def _rotated(self, heads: F32, positions: Positions) -> F32:
        return rotate(heads, *positions.rotations(self.rotary), self.parts.rope.is_interleaved)
