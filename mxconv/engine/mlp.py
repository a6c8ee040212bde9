"""The MLP of a layer."""

from dataclasses import dataclass

from mxconv.arch.elements import Mlp
from mxconv.arrays import F32
from mxconv.engine.activations import ACTIVATIONS
from mxconv.engine.projection import Projection
from mxconv.engine.weights import CheckedWeights
from mxconv.kernels.matrix import Matrix


@dataclass(frozen=True, eq=False)
class WeightedMlp:
    """Its matrices; a fused one is both `gate` and `up`."""

    parts: Mlp
    gate: Projection | None
    up: Projection
    down: Projection

    @classmethod
    def take(cls, weights: CheckedWeights, parts: Mlp, hidden_size: int, prefix: str) -> "WeightedMlp":
        """Raises ModelError where a tensor is missing or has another shape."""
        inner = (2 if parts.fused else 1) * parts.size
        gate = None if parts.gate is None else Projection.take(weights, parts.gate, (inner, hidden_size), prefix)
        up = gate if parts.fused and gate else Projection.take(weights, parts.up, (inner, hidden_size), prefix)
        down = Projection.take(weights, parts.down, (hidden_size, parts.size), prefix)
        return cls(parts, gate, up, down)

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        """All that a pass multiplies by."""
        gate = () if self.gate is None or self.parts.fused else (self.gate.matrix,)
        return (*gate, self.up.matrix, self.down.matrix)

    @property
    def num_weights(self) -> int:
        """That a pass multiplies by, however few its rows."""
        return sum(matrix.shape[0] * matrix.shape[1] for matrix in self.matrices)

    @property
    def num_stored_weights(self) -> int:
        """All that there are."""
        return self.num_weights

    def __call__(self, x: F32) -> F32:
        """What it makes of rows, (num_tokens, hidden_size)."""
        activation = ACTIVATIONS[self.parts.activation]
        if self.parts.fused:
            both = self.up(x)
            size = self.parts.size
            return self.down(activation(both[:, :size].copy()) * both[:, size:])
        if self.gate is None:
            return self.down(activation(self.up(x)))
        return self.down(activation(self.gate(x)) * self.up(x))
