"""A norm with its weights, ready to be applied to rows."""

from dataclasses import dataclass

import numpy as np

from mxconv.arch.elements import Norm
from mxconv.arrays import F32
from mxconv.codecs.fold import fold_in_place
from mxconv.engine.weights import CheckedWeights
from mxconv.kernels.rowwise import rms_norm


@dataclass(frozen=True, eq=False)
class WeightedNorm:
    """A norm over the last axis.

    Args:
        parts: what it is.
        weight: (n,) float32, its offset added.
        bias: (n,) float32, or None.
    """

    parts: Norm
    weight: F32
    bias: F32 | None

    @classmethod
    def take(cls, weights: CheckedWeights, parts: Norm, length: int, prefix: str = "") -> "WeightedNorm":
        """Pick its tensors.

        Raises:
            ModelError: one is missing or has another length.
        """
        name = prefix + parts.name
        weight = np.ones(length, np.float32)
        if parts.has_weight:
            weight = weights.vector(f"{name}.weight", length)
        if parts.offset:
            weight = weight + np.float32(parts.offset)
        return cls(parts, weight, weights.vector(f"{name}.bias", length) if parts.has_bias else None)

    def __call__(self, x: F32) -> F32:
        """(..., n) float32, each row by itself."""
        if self.parts.kind == "layer":
            count = np.float32(x.shape[-1])
            x = x - fold_in_place(x.copy())[..., None] / count
        y = rms_norm(x, self.weight, self.parts.eps)
        return y if self.bias is None else y + self.bias
