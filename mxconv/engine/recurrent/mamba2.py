"""Mamba-2: a state space a head, whose decay is one number."""

from dataclasses import dataclass

import numpy as np

from mxconv.arch.state_mixers import Mamba2
from mxconv.arrays import F32
from mxconv.codecs.fold import fold_in_place
from mxconv.engine.activations import ACTIVATIONS
from mxconv.engine.norm import WeightedNorm
from mxconv.engine.projection import Projection
from mxconv.engine.recurrent.convolution import WeightedConvolution
from mxconv.engine.recurrent.gates import softplus
from mxconv.engine.recurrent.layer_state import LayerState
from mxconv.engine.recurrent.mixer import RecurrentMixer
from mxconv.engine.weights import CheckedWeights
from mxconv.kernels.matrix import Matrix
from mxconv.kernels.rowwise import rms_norm, silu


@dataclass(frozen=True, eq=False)
class WeightedMamba2(RecurrentMixer):
    """Its matrices, taps and vectors."""

    parts: Mamba2
    inputs: Projection
    convolution: WeightedConvolution
    step_bias: F32
    rate: F32  # -exp(decay_log)
    skip: F32
    norm: WeightedNorm
    output: Projection

    @classmethod
    def take(
        cls, weights: CheckedWeights, parts: Mamba2, index: int, hidden_size: int, prefix: str
    ) -> "WeightedMamba2":
        """Raises ModelError where a tensor is missing or has another shape."""
        size, state = parts.size, parts.state

        def vector(name: str) -> F32:
            return weights.vector(prefix + name, parts.num_heads)

        return cls(
            index=index,
            parts=parts,
            inputs=Projection.take(weights, parts.inputs, (size + state.input_size, hidden_size), prefix),
            convolution=WeightedConvolution.take(weights, parts.convolution, state.num_channels, prefix),
            step_bias=vector(parts.step_bias),
            rate=-np.exp(vector(parts.decay_log)),
            skip=vector(parts.skip),
            norm=WeightedNorm.take(weights, parts.norm, size, prefix),
            output=Projection.take(weights, parts.output, (hidden_size, size), prefix),
        )

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        return self.inputs.matrix, self.output.matrix

    def split(self, h: F32) -> tuple[F32, F32 | None]:
        rows, size = self.inputs(h), self.parts.size
        return rows[:, size:], rows[:, :size]

    def step(self, state: LayerState, inputs: F32) -> F32:
        """(num_heads, head_dim)."""
        parts, num_channels = self.parts, self.parts.state.num_channels
        mixed = self.convolution.step(state.window, inputs[:num_channels])
        mixed = ACTIVATIONS[parts.activation](mixed[None])[0]
        x = mixed[: parts.size].reshape(parts.num_heads, parts.head_dim)
        grouped = mixed[parts.size :].reshape(2, parts.num_groups, parts.state_size)
        b, c = grouped.repeat(parts.num_heads // parts.num_groups, axis=1)[:, :, None]  # (heads, 1, state_size)
        least, most = parts.step_limits
        times = softplus(inputs[num_channels:] + self.step_bias).clip(np.float32(least), np.float32(most))
        memory = state.memory
        memory *= np.exp(times * self.rate)[:, None, None]
        memory += (times[:, None] * x)[:, :, None] * b
        read: F32 = fold_in_place(memory * c) + self.skip[:, None] * x
        return read

    def finish(self, made: F32, aside: F32 | None) -> F32:
        assert aside is not None
        gated = made.reshape(len(made), -1) * silu(aside)
        groups = gated.reshape(len(made), self.parts.norm_groups, -1)
        ones = np.ones(groups.shape[-1], np.float32)
        normed = rms_norm(groups, ones, self.norm.parts.eps).reshape(gated.shape)
        return self.output(normed * self.norm.weight)
