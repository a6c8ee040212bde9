"""Embeddings of the layers' own: looked up for every token, and added to its row in each layer."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mxconv.arch.config import ModelConfig
from mxconv.arch.description import LayerInput, LayerInputs
from mxconv.arrays import F32
from mxconv.engine.activations import ACTIVATIONS
from mxconv.engine.norm import WeightedNorm
from mxconv.engine.projection import Projection
from mxconv.engine.weights import CheckedWeights
from mxconv.kernels.matrix import Matrix


@dataclass(frozen=True, eq=False)
class WeightedInput:
    """What one layer does with its embeddings."""

    parts: LayerInput
    gate: Projection
    projection: Projection
    norm: WeightedNorm

    @classmethod
    def take(cls, weights: CheckedWeights, parts: LayerInput, hidden_size: int, prefix: str) -> "WeightedInput":
        """Raises ModelError where a tensor is missing or has another shape."""
        return cls(
            parts,
            Projection.take(weights, parts.gate, (parts.size, hidden_size), prefix),
            Projection.take(weights, parts.projection, (hidden_size, parts.size), prefix),
            WeightedNorm.take(weights, parts.norm, hidden_size, prefix),
        )

    def __call__(self, x: F32, own: F32) -> F32:
        """What is added to rows (num_tokens, hidden_size), given their embeddings (num_tokens, size)."""
        gated = ACTIVATIONS[self.parts.activation](self.gate(x)) * own
        return self.norm(self.projection(gated))


@dataclass(frozen=True, eq=False)
class WeightedInputs:
    """Where the embeddings of all layers come from."""

    parts: LayerInputs
    num_layers: int
    table: Matrix
    projection: Projection
    norm: WeightedNorm

    @classmethod
    def take(cls, weights: CheckedWeights, config: ModelConfig, parts: LayerInputs) -> "WeightedInputs":
        """Raises ModelError where a tensor is missing or has another shape."""
        width = config.num_hidden_layers * parts.size
        return cls(
            parts,
            config.num_hidden_layers,
            weights.matrix(parts.table, config.vocab_size, width),
            Projection.take(weights, parts.projection, (width, config.hidden_size)),
            WeightedNorm.take(weights, parts.norm, parts.size),
        )

    def __call__(self, ids: NDArray[np.intp], embedded: F32) -> F32:
        """Of tokens and their embeddings (num_tokens, hidden_size): (num_layers, num_tokens, size)."""
        shape = len(ids), self.num_layers, self.parts.size
        looked_up = (self.table.rows(ids) * np.float32(self.parts.table_multiplier)).reshape(shape)
        projected = (self.projection(embedded) * np.float32(self.parts.projection_multiplier)).reshape(shape)
        summed = (self.norm(projected) + looked_up) * np.float32(self.parts.multiplier)
        return np.ascontiguousarray(summed.transpose(1, 0, 2))
