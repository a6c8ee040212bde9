"""A matrix and its bias, as a layer multiplies rows by them."""

from dataclasses import dataclass

from mxconv.arch.elements import Linear
from mxconv.arrays import F32
from mxconv.engine.weights import CheckedWeights
from mxconv.kernels.matrix import Matrix


@dataclass(frozen=True, eq=False)
class Projection:
    """A matrix and, in some models, a bias of (out_features,)."""

    matrix: Matrix
    bias: F32 | None

    @classmethod
    def take(cls, weights: CheckedWeights, parts: Linear, shape: tuple[int, int], prefix: str = "") -> "Projection":
        """Pick its tensors; `shape` is (out_features, in_features).

        Raises:
            ModelError: one is missing or has another shape.
        """
        name, (out_features, in_features) = prefix + parts.name, shape
        if parts.is_transposed:
            matrix = weights.matrix(f"{name}.weight", in_features, out_features).turned()
        else:
            matrix = weights.matrix(f"{name}.weight", out_features, in_features)
        return cls(matrix, weights.vector(f"{name}.bias", out_features) if parts.has_bias else None)

    def __call__(self, x: F32) -> F32:
        """(num_tokens, in_features) to (num_tokens, out_features)."""
        y = self.matrix.multiply(x)
        return y if self.bias is None else y + self.bias
