"""Gated DeltaNet: linear attention that forgets, and corrects what it remembers."""

import math
from dataclasses import dataclass

import numpy as np

from mxconv.arch.state_mixers import GatedDeltaNet
from mxconv.arrays import F32
from mxconv.codecs.fold import fold_in_place
from mxconv.engine.norm import WeightedNorm
from mxconv.engine.projection import Projection
from mxconv.engine.recurrent.convolution import WeightedConvolution
from mxconv.engine.recurrent.gates import sigmoid, softplus
from mxconv.engine.recurrent.layer_state import LayerState
from mxconv.engine.recurrent.mixer import RecurrentMixer
from mxconv.engine.weights import CheckedWeights
from mxconv.kernels.matrix import Matrix
from mxconv.kernels.rowwise import silu

EPS = np.float32(1e-6)  # of a query's and a key's length


@dataclass(frozen=True, eq=False)
class WeightedDeltaNet(RecurrentMixer):
    """Its matrices, taps and vectors; a fused matrix stands for two."""

    parts: GatedDeltaNet
    queries_keys_values: Projection
    gate: Projection
    beta: Projection
    decay: Projection
    convolution: WeightedConvolution
    decay_bias: F32
    rate: F32  # -exp(decay_log)
    norm: WeightedNorm
    output: Projection

    @classmethod
    def take(
        cls, weights: CheckedWeights, parts: GatedDeltaNet, index: int, hidden_size: int, prefix: str
    ) -> "WeightedDeltaNet":
        """Raises ModelError where a tensor is missing or has another shape."""
        heads, num_values, num_mixed = parts.num_value_heads, parts.num_values, 2 * parts.num_keys + parts.num_values

        def projection(name: str, out_features: int) -> Projection:
            return Projection.take(weights, getattr(parts, name), (out_features, hidden_size), prefix)

        mixed = projection("queries_keys_values", num_mixed + (num_values if parts.fused else 0))
        beta = projection("beta", 2 * heads if parts.fused else heads)
        return cls(
            index=index,
            parts=parts,
            queries_keys_values=mixed,
            gate=mixed if parts.fused else projection("gate", num_values),
            beta=beta,
            decay=beta if parts.fused else projection("decay", heads),
            convolution=WeightedConvolution.take(weights, parts.convolution, num_mixed, prefix),
            decay_bias=weights.vector(prefix + parts.decay_bias, heads),
            rate=-np.exp(weights.vector(prefix + parts.decay_log, heads)),
            norm=WeightedNorm.take(weights, parts.norm, parts.value_dim, prefix),
            output=Projection.take(weights, parts.output, (hidden_size, num_values), prefix),
        )

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        each = (self.queries_keys_values, self.gate, self.beta, self.decay)
        chosen = each[::2] if self.parts.fused else each
        return tuple(projection.matrix for projection in (*chosen, self.output))

    def split(self, h: F32) -> tuple[F32, F32 | None]:
        if not self.parts.fused:
            given = [self.queries_keys_values(h), self.beta(h), self.decay(h)]
            return np.concatenate(given, axis=1), self.gate(h)
        parts, num_tokens = self.parts, len(h)
        heads, group = parts.num_key_heads, parts.num_value_heads // parts.num_key_heads
        cuts = np.cumsum([parts.key_dim, parts.key_dim, group * parts.value_dim])
        queries, keys, values, gate = np.split(
            self.queries_keys_values(h).reshape(num_tokens, heads, -1), cuts.tolist(), axis=2
        )
        beta, decay = np.split(self.beta(h).reshape(num_tokens, heads, 2 * group), 2, axis=2)
        given = [each.reshape(num_tokens, -1) for each in (queries, keys, values, beta, decay)]
        return np.concatenate(given, axis=1), gate.reshape(num_tokens, -1)

    def step(self, state: LayerState, inputs: F32) -> F32:
        """(num_value_heads, value_dim)."""
        parts, num_channels = self.parts, self.parts.state.num_channels
        beta, decay = inputs[num_channels:].reshape(2, parts.num_value_heads)
        mixed = silu(self.convolution.step(state.window, inputs[:num_channels])[None])[0]
        keyed = mixed[: 2 * parts.num_keys].reshape(2, parts.num_key_heads, parts.key_dim)
        lengths = np.sqrt(fold_in_place(keyed * keyed) + EPS)
        group = parts.num_value_heads // parts.num_key_heads
        queries, keys = (keyed / lengths[..., None]).repeat(group, axis=1)[..., None]  # (heads, key_dim, 1)
        values = mixed[2 * parts.num_keys :].reshape(-1, parts.value_dim)
        memory = state.memory
        memory *= np.exp(self.rate * softplus(decay + self.decay_bias))[:, None, None]
        missed = (values - fold_in_place(memory * keys, axis=1)) * sigmoid(beta)[:, None]
        memory += keys * missed[:, None]
        queries = queries * np.float32(1 / math.sqrt(parts.key_dim))
        return fold_in_place(memory * queries, axis=1)

    def finish(self, made: F32, aside: F32 | None) -> F32:
        assert aside is not None
        return self.output(self.norm(made).reshape(len(made), -1) * silu(aside))
