"""The positions of a pass's rows, and what follows from them: every kind of rotation is computed once."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from mxconv.arch.description import Temperature
from mxconv.arch.rope_parameters import RopeParameters
from mxconv.arrays import F32, F64


def frequencies(parameters: RopeParameters, head_dim: int) -> F32:
    """Radians a position for each pair, (rotary_dim / 2,) float32.

    Source:
        Llama 3.1's scaling as in the transformers documentation: wavelengths beyond
        original / low_freq_factor are stretched by factor, those under original / high_freq_factor are
        kept, and between them the two are mixed linearly in original / wavelength. YaRN: arXiv 2309.00071,
        section 3.2; LongRoPE: arXiv 2402.13753, section 3; proportional: as transformers' gemma4.
    """
    rotary_dim = parameters.rotary_dim(head_dim)
    base: F64 = parameters.theta ** -(np.arange(0, rotary_dim, 2, dtype=np.float64) / rotary_dim)
    kept: F64 | None = None  # the share of its speed that each pair keeps; the rest is divided by the factor
    match parameters.rope_type:
        case "linear":
            base = base / parameters.factor
        case "llama3":
            turns = parameters.original_max_position_embeddings * base / (2 * math.pi)  # in the original context
            low, high = parameters.low_freq_factor, parameters.high_freq_factor
            kept = np.clip((turns - low) / (high - low), 0, 1)
        case "yarn":
            kept = _kept_by_yarn(parameters, rotary_dim)
        case "longrope":
            base = base / np.array(parameters.factors)
        case "proportional":
            base[int(parameters.share * head_dim // 2) :] = 0
            base = base / parameters.factor
    if kept is not None:
        base = kept * base + (1 - kept) * base / parameters.factor
    return base.astype(np.float32)


def _kept_by_yarn(parameters: RopeParameters, rotary_dim: int) -> F64:
    """The share of its speed that each pair keeps: a ramp between the pairs that make beta_fast and beta_slow turns."""

    def pair(turns: float) -> float:
        reach = parameters.original_max_position_embeddings / (turns * 2 * math.pi)
        return rotary_dim * math.log(reach) / (2 * math.log(parameters.theta))

    first, last = pair(parameters.beta_fast), pair(parameters.beta_slow)
    if parameters.truncates:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, rotary_dim - 1)
    if first == last:
        last += 0.001
    kept: F64 = 1 - np.clip((np.arange((rotary_dim + 1) // 2) - first) / (last - first), 0, 1)
    return kept


@dataclass(frozen=True)
class RotaryEmbedding:
    """The rotations of some layers of a model."""

    parameters: RopeParameters
    head_dim: int

    @cached_property
    def frequencies(self) -> F32:
        return frequencies(self.parameters, self.head_dim)

    def rotations(self, positions: Sequence[int]) -> tuple[F32, F32]:
        """Cosines and sines for positions; each computed from its position alone, once.

        Returns:
            Two (len(positions), 1, rotary_dim / 2) float32 arrays.
        """
        cosines, sines = self._known[0]
        if (last := max(positions, default=0)) >= len(cosines):
            self._known[0] = cosines, sines = self._table(1 << max(last.bit_length(), 6))
        rows = np.array(positions, np.intp)
        return cosines[rows], sines[rows]

    @cached_property
    def _known(self) -> list[tuple[F32, F32]]:
        """One pair, of the positions from 0 to beyond the last one that was asked for; threads exchange it whole."""
        return [self._table(0)]

    def _table(self, count: int) -> tuple[F32, F32]:
        cosines = np.empty((count, 1, len(self.frequencies)), np.float32)
        sines = np.empty_like(cosines)
        for position in range(count):
            # models are trained with the angle rounded to float32; only its cosine is taken more exactly
            angles = (self.frequencies * np.float32(position)).astype(np.float64)
            cosines[position, 0] = np.cos(angles)
            sines[position, 0] = np.sin(angles)
        if self.parameters.multiplier != 1:
            cosines *= np.float32(self.parameters.multiplier)
            sines *= np.float32(self.parameters.multiplier)
        return cosines, sines


def rotate(x: F32, cosines: F32, sines: F32, is_interleaved: bool = False) -> F32:
    """Rotate pairs of every head: (j, j + rotary_dim / 2), or neighbours; values after these stay.

    Args:
        x: (num_tokens, num_heads, head_dim) float32.
        cosines: (num_tokens, 1, rotary_dim / 2) float32, as are the sines.
    """
    half = cosines.shape[-1]
    lower, upper = slice(half), slice(half, 2 * half)
    if is_interleaved:
        lower, upper = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    first, second = x[..., lower], x[..., upper]
    rotated = np.empty_like(x)
    rotated[..., lower] = first * cosines - second * sines
    rotated[..., upper] = second * cosines + first * sines
    rotated[..., 2 * half :] = x[..., 2 * half :]
    return rotated


@dataclass(frozen=True)
class Positions:
    """The positions of the rows of a pass, in their order."""

    numbers: Sequence[int]  # for each row, how many tokens precede it on its path
    _rotations: dict[RotaryEmbedding, tuple[F32, F32]] = field(default_factory=dict)

    def rotations(self, rotary: RotaryEmbedding) -> tuple[F32, F32]:
        """Cosines and sines, (num_rows, 1, rotary_dim / 2) each."""
        if rotary not in self._rotations:
            self._rotations[rotary] = rotary.rotations(self.numbers)
        return self._rotations[rotary]

    def temperatures(self, temperature: Temperature) -> F32:
        """The factor of each row's queries, (num_rows, 1, 1)."""
        steps = (math.log1p((number + temperature.first) // temperature.length) for number in self.numbers)
        factors = np.array([1 + temperature.beta * step for step in steps], np.float32)
        return factors[:, None, None]
