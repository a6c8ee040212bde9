"""Rotary position embedding: pairs of a head's values rotate by angles that grow with the position."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mxconv.arrays import F32
from mxconv.model.fields import Fields

ROPE_TYPES = ("default", "linear", "llama3")


@dataclass(frozen=True)
class RopeParameters:
    """How fast each pair rotates. The last four matter to `linear` (factor) and `llama3` (all) alone."""

    theta: float
    rope_type: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192

    @classmethod
    def from_fields(cls, config: Fields, max_position_embeddings: int) -> "RopeParameters":
        """Read config.json, in the old style (rope_theta, rope_scaling) or that of transformers 5 (rope_parameters).

        Raises:
            ModelError: a scaling that is not supported, or an impossible value.
        """
        scaling = config.section("rope_scaling" if config.values.get("rope_scaling") else "rope_parameters")
        theta = scaling.number("rope_theta", config.number("rope_theta", 10000.0, at_least=1), at_least=1)
        for fields in (config, scaling):
            if fields.values.get("partial_rotary_factor", 1) not in (1, None):
                fields.reject("partial_rotary_factor", "only 1 is supported", "Use a model without it.")
        if any(isinstance(value, dict) for value in scaling.values.values()):
            key = scaling.name.rpartition(" ")[2]
            config.reject(key, "one set for all layers is supported", "Use a model without it.")
        type_key = "rope_type" if "rope_type" in scaling.values else "type"
        rope_type = scaling.choice(type_key, ROPE_TYPES, default="default")
        if rope_type == "default":
            return cls(theta)
        if rope_type == "linear":
            return cls(theta, rope_type, scaling.number("factor", at_least=1))
        low, high = scaling.number("low_freq_factor"), scaling.number("high_freq_factor")
        if not low < high:
            scaling.reject("high_freq_factor", f"more than low_freq_factor, {low:g}, is required")
        original = scaling.size("original_max_position_embeddings", max_position_embeddings)
        return cls(theta, rope_type, scaling.number("factor", at_least=1), low, high, original)

    def frequencies(self, head_dim: int) -> F32:
        """Radians a position for each pair, (head_dim / 2,) float32.

        Source:
            Llama 3.1's scaling as in the transformers documentation: wavelengths beyond
            original / low_freq_factor are stretched by factor, those under original / high_freq_factor are
            kept, and between them the two are mixed linearly in original / wavelength.
        """
        base = self.theta ** -(np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
        if self.rope_type == "linear":
            base = base / self.factor
        if self.rope_type == "llama3":
            turns = self.original_max_position_embeddings * base / (2 * math.pi)  # in the original context
            kept = np.clip((turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor), 0, 1)
            base = kept * base + (1 - kept) * base / self.factor
        return base.astype(np.float32)


@dataclass(frozen=True)
class RotaryEmbedding:
    """The rotations of one model."""

    parameters: RopeParameters
    head_dim: int

    @cached_property
    def frequencies(self) -> F32:
        return self.parameters.frequencies(self.head_dim)

    def rotations(self, start: int, num_tokens: int) -> tuple[F32, F32]:
        """Cosines and sines for positions start, start + 1, ...; each computed from its position alone.

        Returns:
            Two (num_tokens, 1, head_dim / 2) float32 arrays.
        """
        cosines = np.empty((num_tokens, 1, self.head_dim // 2), np.float32)
        sines = np.empty_like(cosines)
        for token in range(num_tokens):
            # models are trained with the angle rounded to float32; only its cosine is taken more exactly
            angles = (self.frequencies * np.float32(start + token)).astype(np.float64)
            cosines[token, 0] = np.cos(angles)
            sines[token, 0] = np.sin(angles)
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
