"""Latent attention of a layer, over a cache of latent vectors.

A head's key is a product of its matrix with the latent vector, so that a query times the key is the query times that
matrix, once a row, times the latent vector; and likewise a head's values are taken from the mean of latent vectors.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mxconv.arch.description import LatentAttention
from mxconv.arrays import F32
from mxconv.codecs.fold import fold_in_place
from mxconv.engine.attention import attend
from mxconv.engine.forest import SequenceRows, spans
from mxconv.engine.norm import WeightedNorm
from mxconv.engine.positions import Positions
from mxconv.engine.projection import Projection
from mxconv.engine.rope import RotaryEmbedding, rotate
from mxconv.engine.sight import seen_by
from mxconv.engine.sink_window import SinkWindow
from mxconv.engine.weights import CheckedWeights
from mxconv.kernels.matrix import Matrix


@dataclass(frozen=True, eq=False)
class WeightedLatentAttention:
    """Its matrices and norms.

    Args:
        key_up: (num_heads, plain_size, latent_size) float32, of the matrix `up`, as are the values' rows.
        value_up: (num_heads, value_size, latent_size).
    """

    index: int
    parts: LatentAttention
    query_down: Projection | None
    query_norm: WeightedNorm | None
    query: Projection
    down: Projection
    latent_norm: WeightedNorm
    up: Projection
    key_up: F32
    value_up: F32
    output: Projection

    @classmethod
    def take(
        cls, weights: CheckedWeights, parts: LatentAttention, index: int, sizes: tuple[int, int], prefix: str
    ) -> "WeightedLatentAttention":
        """Pick its tensors; `sizes` are those of the rows that it takes in and gives.

        Raises:
            ModelError: one is missing or has another shape.
        """
        taken, hidden_size = sizes
        heads, of_head = parts.num_heads, parts.plain_size + parts.value_size
        norm, query_down, query_norm = parts.query_norm, parts.query_down, None
        down = None
        if query_down is not None and norm is not None:
            down = Projection.take(weights, query_down, (parts.query_rank, taken), prefix)
            query_norm = WeightedNorm.take(weights, norm, parts.query_rank, prefix)
        queries = heads * (parts.plain_size + parts.rotated_size)
        up = Projection.take(weights, parts.up, (heads * of_head, parts.latent_size), prefix)
        both = up.matrix.rows(np.arange(heads * of_head)).reshape(heads, of_head, parts.latent_size)
        return cls(
            index=index,
            parts=parts,
            query_down=down,
            query_norm=query_norm,
            query=Projection.take(weights, parts.query, (queries, parts.query_rank), prefix),
            down=Projection.take(weights, parts.down, (parts.head_dim, taken), prefix),
            latent_norm=WeightedNorm.take(weights, parts.latent_norm, parts.latent_size, prefix),
            up=up,
            key_up=np.ascontiguousarray(both[:, : parts.plain_size]),
            value_up=np.ascontiguousarray(both[:, parts.plain_size :]),
            output=Projection.take(weights, parts.output, (hidden_size, heads * parts.value_size), prefix),
        )

    @cached_property
    def rotary(self) -> RotaryEmbedding:
        return RotaryEmbedding(self.parts.rope, self.parts.rotated_size)

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        """All that a pass multiplies by."""
        first = () if self.query_down is None else (self.query_down.matrix,)
        return (*first, self.query.matrix, self.down.matrix, self.up.matrix, self.output.matrix)

    def __call__(
        self, h: F32, sequences: Sequence[SequenceRows], positions: Positions, sink_window: SinkWindow | None = None
    ) -> F32:
        """What attention adds to rows, (num_tokens, hidden_size), given what it takes in of them.

        Writes their latent vectors, and the keys that rotate, to the caches in the place of keys.
        """
        parts = self.parts
        queries, keys = self._queries(h, positions), self._keys(h, positions)
        mixed = np.empty((len(h), parts.num_heads, parts.value_size), np.float32)
        for rows, span in zip(sequences, spans(rows.num_rows for rows in sequences), strict=True):
            rows.cache.write(self.index, keys[span], keys[span, :, :0])
            for row in range(rows.num_rows):
                seen, _ = rows.cache.read(self.index, seen_by(row, rows, parts.window, sink_window=sink_window))
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
