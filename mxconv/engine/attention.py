"""Attention of a layer over the keys and values that a cache holds, or over its latent vectors.

With latent attention a head's key is a product of its matrix with the latent vector, so that a query times the key is
the query times that matrix, once a row, times the latent vector; and likewise a head's values are taken from the mean
of latent vectors.
"""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxconv.arch.description import Attention, LatentAttention
from mxconv.arrays import F32
from mxconv.codecs.fold import fold_in_place
from mxconv.engine.activations import row_sigmoid
from mxconv.engine.attention_window import RetrievedPages, SinkWindow, places_seen
from mxconv.engine.kv_pool import PAGE
from mxconv.engine.rope import Positions, RotaryEmbedding, rotate
from mxconv.engine.sequence_rows import SequenceRows, spans
from mxconv.engine.weights import CheckedWeights, Projection, WeightedNorm, WeightedPart

CHUNK = 64  # positions that are folded together; chunks are added one after another
assert PAGE % CHUNK == 0, "a chunk of a text from its first position on lies in one page"


def attend(
    query: F32,
    keys: F32,
    values: F32,
    scale: float | None = None,
    logit_cap: float | None = None,
    sinks: F32 | None = None,
) -> F32:
    """Softmax-weighted mean of the values, for every head of one position.

    The order of every sum depends on the number of keys alone, so the result does not depend on which other
    positions are evaluated in the same pass. Memory is that of one chunk.

    Args:
        query: (num_heads, head_dim) float32. Heads h * group .. (h + 1) * group - 1 share key-value head h.
        keys: (num_key_value_heads, num_positions, head_dim) float32, as are the values, of perhaps another head_dim.
        scale: of a query times a key; None is 1 / sqrt(head_dim).
        logit_cap: c turns a score s into c * tanh(s / c); None is none.
        sinks: (num_heads,) scores of positions that have no value; None is none.

    Returns:
        (num_heads, head_dim of the values) float32.
    """
    num_heads, head_dim = query.shape
    num_key_value_heads, num_positions, _ = keys.shape
    group = num_heads // num_key_value_heads
    scale = 1 / math.sqrt(head_dim) if scale is None else scale
    scaled: F32 = (query * np.float32(scale)).reshape(num_key_value_heads, group, 1, head_dim)
    chunks = [slice(start, min(start + CHUNK, num_positions)) for start in range(0, num_positions, CHUNK)]

    scores = np.empty((num_key_value_heads, group, num_positions), np.float32)
    for chunk in chunks:
        scores[:, :, chunk] = fold_in_place(scaled * keys[:, None, chunk])
    if logit_cap is not None:
        scores /= np.float32(logit_cap)
        np.tanh(scores, out=scores)
        scores *= np.float32(logit_cap)
    greatest = scores.max(axis=-1)
    total = np.zeros((num_key_value_heads, group), np.float32)
    if sinks is not None:
        own = sinks.reshape(num_key_value_heads, group)
        greatest = np.maximum(greatest, own)
        total += np.exp(own - greatest)
    scores -= greatest[:, :, None]
    shares = np.exp(scores, out=scores)

    mixed = np.zeros((num_key_value_heads, group, values.shape[-1]), np.float32)
    for chunk in chunks:
        mixed += fold_in_place(shares[:, :, chunk, None] * values[:, None, chunk], axis=-2)
        total += fold_in_place(shares[:, :, chunk].copy())
    mixed /= total[..., None]
    return mixed.reshape(num_heads, -1)


def retrieve(
    pattern: RetrievedPages, query: F32, keys: F32, values: F32, sinks: F32 | None = None, **options: Any
) -> F32:
    """What `attend` gives where each head of keys reads the positions that it retrieves alone."""
    group = len(query) // len(keys)
    mixed = []
    for head, queries in enumerate(query.reshape(len(keys), group, -1)):
        found, one = pattern.retrieved(queries, keys[head]), slice(head, head + 1)
        own = None if sinks is None else sinks[head * group : (head + 1) * group]
        mixed.append(attend(queries, keys[one, found], values[one, found], sinks=own, **options))
    return np.concatenate(mixed)


def attend_together(
    queries: F32,
    keys: F32,
    values: F32,
    seen: NDArray[np.bool_],
    scale: float | None = None,
    logit_cap: float | None = None,
    sinks: F32 | None = None,
) -> F32:
    """What `attend` gives for many positions, by matrix products: fast, and the bits of a row depend on the others.

    Args:
        queries: (num_rows, num_heads, head_dim) float32, as is the result; the other arguments are those of `attend`.
        seen: (num_rows, num_positions), what each row attends to.
    """
    num_rows, num_heads, head_dim = queries.shape
    count = len(keys)
    scale = 1 / math.sqrt(head_dim) if scale is None else scale
    grouped = (queries * np.float32(scale)).transpose(1, 0, 2).reshape(count, -1, head_dim)
    scores = (grouped @ keys.transpose(0, 2, 1)).reshape(count, num_heads // count, num_rows, -1)
    if logit_cap is not None:
        scores = np.tanh(scores / np.float32(logit_cap)) * np.float32(logit_cap)
    scores[..., ~seen] = -np.inf
    greatest = scores.max(axis=-1, keepdims=True)
    total = np.float32(0)
    if sinks is not None:
        own = sinks.reshape(count, -1, 1, 1)
        greatest = np.maximum(greatest, own)
        total = np.exp(own - greatest)
    shares = np.exp(scores - greatest)
    total = total + shares.sum(axis=-1, keepdims=True)
    mixed: F32 = (shares.reshape(count, -1, shares.shape[-1]) @ values).reshape(*shares.shape[:3], -1) / total
    return mixed.reshape(num_heads, num_rows, -1).transpose(1, 0, 2)


class WeightedAttention(WeightedPart):
    """Attention with its matrices and norms, of a layer that takes in and gives rows of two `sizes`.

    A fused matrix is all of `query`, `key` and `value`. `key` and `value` are None where the layer has none of its own.
    """

    attends_together = False  # all rows of a sequence at once: for calibration, which needs no row promise

    def __init__(self, weights: CheckedWeights, parts: Attention, index: int, sizes: tuple[int, int]) -> None:
        self.index = index
        self.parts = parts
        taken, hidden_size = sizes
        queries, keys = parts.num_heads * parts.head_dim, parts.num_key_value_heads * parts.head_dim
        query_span, key_span = (queries, keys) if parts.norm_span == "row" else (parts.head_dim, parts.head_dim)
        has_keys = parts.source is None
        has_values = has_keys and not parts.keys_are_values
        self.key: Projection | None
        self.value: Projection | None
        if parts.fused:
            self.query = self.key = self.value = weights.projection(parts.query, queries + 2 * keys, taken)
        else:
            self.query = weights.projection(parts.query, 2 * queries if parts.is_gated else queries, taken)
            self.key = weights.projection(parts.key, keys, taken) if has_keys else None
            self.value = weights.projection(parts.value, keys, taken) if has_values else None
        self.output = weights.projection(parts.output, hidden_size, queries)
        self.query_norm = weights.norm(parts.query_norm, query_span)
        self.key_norm = weights.norm(parts.key_norm if has_keys else None, key_span)
        self.value_norm = weights.norm(parts.value_norm if has_keys else None, parts.head_dim)
        self.sinks = weights.vector(parts.sinks, parts.num_heads)

    @cached_property
    def rotary(self) -> RotaryEmbedding | None:
        return None if self.parts.rope is None else RotaryEmbedding(self.parts.rope, self.parts.head_dim)

    def __call__(
        self, h: F32, sequences: Sequence[SequenceRows], positions: Positions, pattern: SinkWindow | None = None
    ) -> F32:
        """Compute what attention adds to rows, (num_tokens, hidden_size), from its input for them.

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
        written = None if keys is None or values is None else self._finished(keys, values, positions)
        options: dict[str, Any] = {"scale": parts.scale, "logit_cap": parts.logit_cap, "sinks": self.sinks}
        mixed = np.empty_like(queries)
        for rows, span in zip(sequences, spans(rows.num_rows for rows in sequences), strict=True):
            if written is not None:
                rows.cache.write(self.index, written[0][span], written[1][span])
            seen = [places_seen(row, rows, parts.window, parts.is_chunked, pattern) for row in range(rows.num_rows)]
            if isinstance(pattern, RetrievedPages):
                for row, places in enumerate(seen, span.start):
                    mixed[row] = retrieve(pattern, queries[row], *self._read(rows, places), **options)
                continue
            if self.attends_together:
                num_places = rows.cache.length + rows.num_rows
                is_seen = np.zeros((rows.num_rows, num_places), np.bool_)
                for row, places in enumerate(seen):
                    is_seen[row, slice(places.start, places.stop) if isinstance(places, range) else places] = True
                keys_seen, values_seen = self._read(rows, range(num_places))
                mixed[span] = attend_together(queries[span], keys_seen, values_seen, is_seen, **options)
                continue
            for row, places in enumerate(seen, span.start):
                mixed[row] = attend(queries[row], *self._read(rows, places), **options)
        if gate is not None:
            for row, above in zip(mixed, gate, strict=True):
                row *= row_sigmoid(above)
        return self.output(mixed.reshape(len(h), -1))

    def _read(self, rows: SequenceRows, places: Sequence[int]) -> tuple[F32, F32]:
        """Keys and values at some places of a cache, which may have room for more and larger heads."""
        parts = self.parts
        keys, values = rows.cache.read(self.index if parts.source is None else parts.source, places)
        count, size = parts.num_key_value_heads, parts.head_dim
        return keys[:count, :, :size], values[:count, :, :size]

    def keys_and_values(self, h: F32, positions: Positions) -> tuple[F32, F32]:
        """Keys and values, (num_tokens, num_key_value_heads, head_dim) each, of its input (num_tokens, hidden_size)."""
        _, keys, values = self._heads(h, with_queries=False)
        assert keys is not None and values is not None, "a layer that reads another's keys has none of its own"
        return self._finished(keys, values, positions)

    def _heads(self, h: F32, with_queries: bool = True) -> tuple[F32, F32 | None, F32 | None]:
        """Queries, keys and values, (num_tokens, heads, head_dim) each, as the matrices give them."""
        parts, num_tokens = self.parts, len(h)

        def split(projection: Projection, size: int = parts.head_dim) -> F32:
            return projection(h).reshape(num_tokens, -1, size)

        if parts.fused == "heads":
            each = self.query(h).reshape(num_tokens, parts.num_heads, 3, parts.head_dim)
            return each[:, :, 0].copy(), each[:, :, 1].copy(), each[:, :, 2].copy()
        if parts.fused:
            heads = split(self.query)
            first, second = parts.num_heads, parts.num_heads + parts.num_key_value_heads
            return heads[:, :first].copy(), heads[:, first:second].copy(), heads[:, second:].copy()
        queries = np.empty((num_tokens, 0, parts.head_dim), np.float32)
        if with_queries:
            queries = split(self.query, 2 * parts.head_dim if parts.is_gated else parts.head_dim)
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
        return self._normed(heads, norm) if norm is not None and parts.norms_rotated else heads

    def _clipped(self, heads: F32) -> F32:
        return heads if (clip := self.parts.clip) is None else np.clip(heads, np.float32(-clip), np.float32(clip))

    def _normed(self, heads: F32, norm: WeightedNorm) -> F32:
        if self.parts.norm_span == "head":
            return norm(heads)
        return norm(heads.reshape(len(heads), -1)).reshape(heads.shape)


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
