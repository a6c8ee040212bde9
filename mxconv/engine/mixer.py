"""The attention of a layer: from rows to what it adds to them, over the keys and values that a cache holds."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mxconv.arch.description import Attention
from mxconv.arch.elements import Norm
from mxconv.arrays import F32
from mxconv.engine.attention import attend
from mxconv.engine.forest import SequenceRows, spans
from mxconv.engine.norm import WeightedNorm
from mxconv.engine.positions import Positions
from mxconv.engine.projection import Projection
from mxconv.engine.recurrent.gates import sigmoid
from mxconv.engine.rope import RotaryEmbedding, rotate
from mxconv.engine.sight import seen_by
from mxconv.engine.sink_window import SinkWindow
from mxconv.engine.weights import CheckedWeights
from mxconv.kernels.matrix import Matrix


@dataclass(frozen=True, eq=False)
class WeightedAttention:
    """Its matrices and norms; a fused matrix is all of `query`, `key` and `value`.

    `key` and `value` are None where the layer has none of its own.
    """

    index: int
    parts: Attention
    query: Projection
    key: Projection | None
    value: Projection | None
    output: Projection
    query_norm: WeightedNorm | None
    key_norm: WeightedNorm | None
    value_norm: WeightedNorm | None
    sinks: F32 | None = None

    @classmethod
    def take(
        cls, weights: CheckedWeights, parts: Attention, index: int, sizes: tuple[int, int], prefix: str
    ) -> "WeightedAttention":
        """Pick its tensors; `sizes` are those of the rows that it takes in and gives.

        Raises:
            ModelError: one is missing or has another shape.
        """
        taken, hidden_size = sizes
        queries, keys = parts.num_heads * parts.head_dim, parts.num_key_value_heads * parts.head_dim
        has_keys = parts.source is None

        def projection(linear: Projection | None, name: str, out_features: int) -> Projection:
            return linear or Projection.take(weights, getattr(parts, name), (out_features, taken), prefix)

        def norm(wanted: Norm | None, num_heads: int) -> WeightedNorm | None:
            if wanted is None:
                return None
            length = parts.head_dim * (num_heads if parts.norm_span == "row" and wanted is not parts.value_norm else 1)
            return WeightedNorm.take(weights, wanted, length, prefix)

        both = projection(None, "query", queries + 2 * keys) if parts.fused else None
        return cls(
            index=index,
            parts=parts,
            query=projection(both, "query", 2 * queries if parts.is_gated else queries),
            key=projection(both, "key", keys) if has_keys else None,
            value=projection(both, "value", keys) if has_keys and not parts.keys_are_values else None,
            output=Projection.take(weights, parts.output, (hidden_size, queries), prefix),
            query_norm=norm(parts.query_norm, parts.num_heads),
            key_norm=norm(parts.key_norm, parts.num_key_value_heads) if has_keys else None,
            value_norm=norm(parts.value_norm, parts.num_key_value_heads) if has_keys else None,
            sinks=None if parts.sinks is None else weights.vector(prefix + parts.sinks, parts.num_heads),
        )

    @cached_property
    def rotary(self) -> RotaryEmbedding | None:
        return None if self.parts.rope is None else RotaryEmbedding(self.parts.rope, self.parts.head_dim)

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        """All that a pass multiplies by."""
        own = [self.query] if self.parts.fused else [p for p in (self.query, self.key, self.value) if p is not None]
        return tuple(projection.matrix for projection in (*own, self.output))

    def __call__(
        self, h: F32, sequences: Sequence[SequenceRows], positions: Positions, sink_window: SinkWindow | None = None
    ) -> F32:
        """What attention adds to rows, (num_tokens, hidden_size), given what it takes in of them.

        Writes their keys and values to the caches.
        """
        parts = self.parts
        queries, keys, values = self._heads(h)
        gate: F32 | None = None
        if parts.is_gated:
            queries, gate = queries[..., : parts.head_dim].copy(), queries[..., parts.head_dim :]
        queries = self._placed(queries, self.query_norm, positions)
        if parts.temperature is not None:
            queries = queries * positions.temperatures(parts.temperature)
        source = self.index if parts.source is None else parts.source
        written = None if keys is None or values is None else self._finished(keys, values, positions)
        mixed = np.empty_like(queries)
        for rows, span in zip(sequences, spans(rows.num_rows for rows in sequences), strict=True):
            if written is not None:
                rows.cache.write(self.index, written[0][span], written[1][span])
            for row in range(rows.num_rows):
                keys_seen, values_seen = rows.cache.read(
                    source, seen_by(row, rows, parts.window, parts.is_chunked, sink_window)
                )
                mixed[span.start + row] = attend(
                    queries[span.start + row],
                    keys_seen[: parts.num_key_value_heads, :, : parts.head_dim],
                    values_seen[: parts.num_key_value_heads, :, : parts.head_dim],
                    parts.scale,
                    parts.logit_cap,
                    self.sinks,
                )
        if gate is not None:
            for row, above in zip(mixed, gate, strict=True):
                row *= sigmoid(above)
        return self.output(mixed.reshape(len(h), -1))

    def keys_and_values(self, h: F32, positions: Positions) -> tuple[F32, F32]:
        """Of what it takes in, (num_tokens, hidden_size): two (num_tokens, num_key_value_heads, head_dim)."""
        _, keys, values = self._heads(h, with_queries=False)
        assert keys is not None and values is not None, "a layer that reads another's keys has none of its own"
        return self._finished(keys, values, positions)

    def _heads(self, h: F32, with_queries: bool = True) -> tuple[F32, F32 | None, F32 | None]:
        """Queries, keys and values, (num_tokens, heads, head_dim) each, as the matrices give them."""
        parts, num_tokens = self.parts, len(h)
        if parts.fused:
            rows = self.query(h)
            if parts.fused == "heads":
                each = rows.reshape(num_tokens, parts.num_heads, 3, parts.head_dim)
                return each[:, :, 0].copy(), each[:, :, 1].copy(), each[:, :, 2].copy()
            heads = rows.reshape(num_tokens, -1, parts.head_dim)
            first, second = parts.num_heads, parts.num_heads + parts.num_key_value_heads
            return heads[:, :first].copy(), heads[:, first:second].copy(), heads[:, second:].copy()

        def split(projection: Projection) -> F32:
            return projection(h).reshape(num_tokens, -1, parts.head_dim)

        if parts.is_gated and with_queries:
            queries = self.query(h).reshape(num_tokens, parts.num_heads, 2 * parts.head_dim)
        else:
            queries = split(self.query) if with_queries else np.empty((num_tokens, 0, parts.head_dim), np.float32)
        keys = None if self.key is None else split(self.key)
        return queries, keys, keys if self.value is None else split(self.value)

    def _finished(self, keys: F32, values: F32, positions: Positions) -> tuple[F32, F32]:
        placed = self._placed(keys, self.key_norm, positions)
        return placed, self._clipped(values if self.value_norm is None else self.value_norm(values))

    def _placed(self, heads: F32, norm: WeightedNorm | None, positions: Positions) -> F32:
        """Queries or keys, normed and rotated."""
        parts = self.parts
        if norm is not None and not parts.norms_rotated:
            heads = self._normed(heads, norm)
        heads = self._clipped(heads)
        if self.rotary is not None and parts.rope is not None:
            heads = rotate(heads, *positions.rotations(self.rotary), parts.rope.is_interleaved)
        if norm is not None and parts.norms_rotated:
            heads = self._normed(heads, norm)
        return heads

    def _clipped(self, heads: F32) -> F32:
        return heads if (clip := self.parts.clip) is None else np.clip(heads, np.float32(-clip), np.float32(clip))

    def _normed(self, heads: F32, norm: WeightedNorm) -> F32:
        if self.parts.norm_span == "head":
            return norm(heads)
        return norm(heads.reshape(len(heads), -1)).reshape(heads.shape)
