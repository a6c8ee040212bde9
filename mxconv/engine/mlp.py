"""The MLP of a layer, and the embeddings of the layers' own."""

import numpy as np
from numpy.typing import NDArray

from mxconv.arch.config import ModelConfig
from mxconv.arch.description import LayerInput, LayerInputs
from mxconv.arch.elements import Mlp
from mxconv.arrays import F32
from mxconv.engine.activations import ACTIVATIONS
from mxconv.engine.weights import CheckedWeights, WeightedPart


class WeightedMlp(WeightedPart):
    """An MLP with its matrices; a fused one is both `gate` and `up`."""

    def __init__(self, weights: CheckedWeights, parts: Mlp, hidden_size: int) -> None:
        self.parts = parts
        inner = (2 if parts.fused else 1) * parts.size
        self.gate = weights.projection(parts.gate, inner, hidden_size) if parts.gate else None
        self.up = self.gate if parts.fused and self.gate else weights.projection(parts.up, inner, hidden_size)
        self.down = weights.projection(parts.down, hidden_size, parts.size)

    @property
    def num_weights(self) -> int:
        """How many a pass multiplies by, however few its rows."""
        return sum(matrix.shape[0] * matrix.shape[1] for matrix in self.matrices)

    @property
    def num_stored_weights(self) -> int:
        """How many there are."""
        return self.num_weights

    def __call__(self, x: F32) -> F32:
        """What it makes of rows, (num_tokens, hidden_size)."""
        activation = ACTIVATIONS[self.parts.activation]
        if self.parts.fused:
            both, size = self.up(x), self.parts.size
            return self.down(activation(both[:, :size].copy()) * both[:, size:])
        if self.gate is None:
            return self.down(activation(self.up(x)))
        return self.down(activation(self.gate(x)) * self.up(x))


class WeightedInput:
    """What one layer does with its own embeddings of the tokens."""

    def __init__(self, weights: CheckedWeights, parts: LayerInput, hidden_size: int) -> None:
        self.parts = parts
        self.gate = weights.projection(parts.gate, parts.size, hidden_size)
        self.projection = weights.projection(parts.projection, hidden_size, parts.size)
        self.norm = weights.norm(parts.norm, hidden_size)

    def __call__(self, x: F32, own: F32) -> F32:
        """What is added to rows (num_tokens, hidden_size), given their embeddings (num_tokens, size)."""
        gated = ACTIVATIONS[self.parts.activation](self.gate(x)) * own
        return self.norm(self.projection(gated))


class WeightedInputs:
    """Where the embeddings of all layers' own come from."""

    def __init__(self, weights: CheckedWeights, config: ModelConfig, parts: LayerInputs) -> None:
        self.parts = parts
        self.num_layers = config.num_hidden_layers
        width = self.num_layers * parts.size
        self.table = weights.matrix(parts.table, config.vocab_size, width)
        self.projection = weights.projection(parts.projection, width, config.hidden_size)
        self.norm = weights.norm(parts.norm, parts.size)

    def __call__(self, ids: NDArray[np.intp], embedded: F32) -> F32:
        """(num_layers, num_tokens, size), given tokens and their embeddings (num_tokens, hidden_size)."""
        shape = len(ids), self.num_layers, self.parts.size
        looked_up = (self.table.rows(ids) * np.float32(self.parts.table_multiplier)).reshape(shape)
        projected = (self.projection(embedded) * np.float32(self.parts.projection_multiplier)).reshape(shape)
        summed = (self.norm(projected) + looked_up) * np.float32(self.parts.multiplier)
        return np.ascontiguousarray(summed.transpose(1, 0, 2))
