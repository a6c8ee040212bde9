"""Rotary position embedding: pairs of a head's values rotate by angles that grow with the position."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mxconv.arrays import F32
from mxconv.model.rope_parameters import RopeParameters


def frequencies(parameters: RopeParameters, head_dim: int) -> F32:
    """Radians a position for each pair, (head_dim / 2,) float32.

    Source:
        Llama 3.1's scaling as in the transformers documentation: wavelengths beyond
        original / low_freq_factor are stretched by factor, those under original / high_freq_factor are
        kept, and between them the two are mixed linearly in original / wavelength.
    """
    base = parameters.theta ** -(np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    if parameters.rope_type == "linear":
        base = base / parameters.factor
    if parameters.rope_type == "llama3":
        turns = parameters.original_max_position_embeddings * base / (2 * math.pi)  # in the original context
        low, high = parameters.low_freq_factor, parameters.high_freq_factor
        kept = np.clip((turns - low) / (high - low), 0, 1)
        base = kept * base + (1 - kept) * base / parameters.factor
    return base.astype(np.float32)


@dataclass(frozen=True)
class RotaryEmbedding:
    """The rotations of one model."""

    parameters: RopeParameters
    head_dim: int

    @cached_property
    def frequencies(self) -> F32:
        return frequencies(self.parameters, self.head_dim)

    def rotations(self, positions: Sequence[int]) -> tuple[F32, F32]:
        """Cosines and sines for positions; each computed from its position alone.

        Returns:
            Two (len(positions), 1, head_dim / 2) float32 arrays.
        """
        cosines = np.empty((len(positions), 1, self.head_dim // 2), np.float32)
        sines = np.empty_like(cosines)
        for row, position in enumerate(positions):
            # models are trained with the angle rounded to float32; only its cosine is taken more exactly
            angles = (self.frequencies * np.float32(position)).astype(np.float64)
            cosines[row, 0] = np.cos(angles)
            sines[row, 0] = np.sin(angles)
        return cosines, sines


def rotate(x: F32, cosines: F32, sines: F32) -> F32:
    """Rotate the pairs (j, j + head_dim / 2) of every head.

    Args:
        x: (num_tokens, num_heads, head_dim) float32.
        cosines: (num_tokens, 1, head_dim / 2) float32, as are the sines.
    """
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    rotated = np.empty_like(x)
    rotated[..., :half] = first * cosines - second * sines
    rotated[..., half:] = second * cosines + first * sines
    return rotated
