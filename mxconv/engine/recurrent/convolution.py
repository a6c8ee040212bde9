"""The causal convolution that a recurrent mixer begins with, a row at a time."""

from dataclasses import dataclass

import numpy as np

from mxconv.arch.state_mixers import Convolution
from mxconv.arrays import F32
from mxconv.engine.weights import CheckedWeights


@dataclass(frozen=True, eq=False)
class WeightedConvolution:
    """Its taps, (kernel_size, num_channels) float32, the oldest row's first, and bias."""

    taps: F32
    bias: F32 | None

    @classmethod
    def take(cls, weights: CheckedWeights, parts: Convolution, num_channels: int, prefix: str) -> "WeightedConvolution":
        """Raises ModelError where a tensor is missing or has another shape."""
        name = prefix + parts.name
        stored = weights.array(f"{name}.weight", (num_channels, 1, parts.kernel_size))
        bias = weights.vector(f"{name}.bias", num_channels) if parts.has_bias else None
        return cls(np.ascontiguousarray(stored[:, 0].T), bias)

    def step(self, window: F32, x: F32) -> F32:
        """What it makes of a row, (num_channels,), which then is the window's last.

        Args:
            window: (kernel_size - 1, num_channels), changed.
            x: (num_channels,).
        """
        total: F32 = x * self.taps[-1]
        for seen, tap in zip(window, self.taps[:-1], strict=True):
            total += seen * tap
        if self.bias is not None:
            total += self.bias
        if len(window):
            window[:-1] = window[1:]
            window[-1] = x
        return total
