"""One transformer layer: attention and MLP, each behind a norm and added to its input."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mxconv.arrays import F32
from mxconv.kernels.matrix import Matrix
from mxconv.kernels.rowwise import rms_norm, silu
from mxconv.model.attention import attend
from mxconv.model.config import ModelConfig
from mxconv.model.forest import SequenceRows, spans
from mxconv.model.rope import rotate
from mxconv.model.sink_window import SinkWindow
from mxconv.model.weights import CheckedWeights


@dataclass(frozen=True, eq=False)
class Projection:
    """A matrix and, in some models, a bias of (out_features,)."""

    matrix: Matrix
    bias: F32 | None

    @classmethod
    def take(cls, weights: CheckedWeights, name: str, shape: tuple[int, int], bias: bool) -> "Projection":
        matrix = weights.matrix(f"{name}.weight", *shape)
        return cls(matrix, weights.vector(f"{name}.bias", shape[0]) if bias else None)

    def __call__(self, x: F32) -> F32:
        """(num_tokens, in_features) to (num_tokens, out_features)."""
        y = self.matrix.multiply(x)
        return y if self.bias is None else y + self.bias


@dataclass(frozen=True, eq=False)
class Layer:
    """The tensors of layer `index`, and what it does with them.

    The last three are of drafts: a part that is skipped leaves its input as it is, and writes nothing to the cache.
    """

    index: int
    config: ModelConfig
    input_norm: F32
    query: Projection
    key: Projection
    value: Projection
    query_norm: F32 | None
    key_norm: F32 | None
    output: Projection
    mlp_norm: F32
    gate: Projection
    up: Projection
    down: Projection
    skips_attention: bool = False
    skips_mlp: bool = False
    sink_window: SinkWindow | None = None

    @classmethod
    def take(
        cls,
        weights: CheckedWeights,
        config: ModelConfig,
        index: int,
        prefix: str = "model.layers",
        attended_size: int | None = None,
    ) -> "Layer":
        """Pick the layer's tensors.

        Args:
            weights: all tensors.
            config: sizes.
            index: of the layer.
            prefix: of its tensors' names, before the index.
            attended_size: numbers of a row that attention takes in; None is the hidden size.

        Raises:
            ModelError: one is missing or has another shape than the configuration says.
        """
        name = f"{prefix}.{index}"
        hidden, inner, head = config.hidden_size, config.intermediate_size, config.head_dim
        attended = attended_size or hidden
        heads, kv_heads = config.num_attention_heads * head, config.num_key_value_heads * head

        def projection(part: str, out_features: int, in_features: int, bias: bool) -> Projection:
            return Projection.take(weights, f"{name}.{part}", (out_features, in_features), bias)

        def norm(part: str, length: int) -> F32:
            return weights.vector(f"{name}.{part}.weight", length)

        return cls(
            index=index,
            config=config,
            input_norm=norm("input_layernorm", hidden),
            query=projection("self_attn.q_proj", heads, attended, config.qkv_bias),
            key=projection("self_attn.k_proj", kv_heads, attended, config.qkv_bias),
            value=projection("self_attn.v_proj", kv_heads, attended, config.qkv_bias),
            query_norm=norm("self_attn.q_norm", head) if config.qk_norm else None,
            key_norm=norm("self_attn.k_norm", head) if config.qk_norm else None,
            output=projection("self_attn.o_proj", hidden, heads, config.output_bias),
            mlp_norm=norm("post_attention_layernorm", hidden),
            gate=projection("mlp.gate_proj", inner, hidden, config.mlp_bias),
            up=projection("mlp.up_proj", inner, hidden, config.mlp_bias),
            down=projection("mlp.down_proj", hidden, inner, config.mlp_bias),
        )

    def __call__(self, x: F32, sequences: Sequence[SequenceRows], rotations: tuple[F32, F32]) -> F32:
        """Evaluate rows behind what their caches hold, writing their keys and values there.

        Args:
            x: (num_tokens, hidden_size) float32, the rows of each sequence behind those of the one before.
            sequences: their caches, with room for them, and where they hang.
            rotations: cosines and sines of their positions, each (num_tokens, 1, head_dim / 2).

        Returns:
            (num_tokens, hidden_size) float32.
        """
        eps = self.config.rms_norm_eps
        if not self.skips_attention:
            x = x + self.attention(rms_norm(x, self.input_norm, eps), sequences, rotations)
        return x if self.skips_mlp else self.with_mlp(x)

    def with_mlp(self, x: F32) -> F32:
        """What the MLP adds to rows, and the rows, (num_tokens, hidden_size)."""
        h = rms_norm(x, self.mlp_norm, self.config.rms_norm_eps)
        return x + self.down(silu(self.gate(h)) * self.up(h))

    def attention(self, h: F32, sequences: Sequence[SequenceRows], rotations: tuple[F32, F32]) -> F32:
        """What attention adds to rows, (num_tokens, hidden_size), given what it takes in of them, normed."""
        num_tokens, head_dim = len(h), self.config.head_dim
        queries = self.query(h).reshape(num_tokens, -1, head_dim)
        if self.query_norm is not None:
            queries = rms_norm(queries, self.query_norm, self.config.rms_norm_eps)
        queries = rotate(queries, *rotations)
        keys, values = self.keys_and_values(h, rotations)

        mixed = np.empty_like(queries)
        for rows, span in zip(sequences, spans(rows.num_rows for rows in sequences), strict=True):
            rows.cache.write(self.index, keys[span], values[span])
            for row in range(rows.num_rows):
                seen = rows.cache.read(self.index, self._seen_by(row, rows))
                mixed[span.start + row] = attend(queries[span.start + row], *seen)
        return self.output(mixed.reshape(num_tokens, -1))

    def keys_and_values(self, h: F32, rotations: tuple[F32, F32]) -> tuple[F32, F32]:
        """Of normed inputs (num_tokens, hidden_size): two (num_tokens, num_key_value_heads, head_dim)."""
        keys = self.key(h).reshape(len(h), -1, self.config.head_dim)
        values = self.value(h).reshape(len(h), -1, self.config.head_dim)
        if self.key_norm is not None:
            keys = rms_norm(keys, self.key_norm, self.config.rms_norm_eps)
        return rotate(keys, *rotations), values

    def _seen_by(self, row: int, rows: SequenceRows) -> Sequence[int]:
        """The places in the cache that a row attends to: what it may see of its path, itself included."""
        length, tree = rows.cache.length, rows.branches
        path: Sequence[int] = range(length + row + 1)
        if not tree.is_chain:
            start = length - tree.num_cached
            path = [*range(start), *(start + above for above in tree.path(tree.num_cached + row))]
        stop, own_window = len(path), self.config.windows[self.index]
        if self.sink_window is None:
            return path[max(0, stop - (own_window or stop)) :]
        sinks, others = self.sink_window.visible(stop, own_window)
        near = path[others.start : others.stop]
        return [*path[sinks.start : sinks.stop], *near] if sinks else near
