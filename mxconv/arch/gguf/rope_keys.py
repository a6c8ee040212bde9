"""How rotations are said in a GGUF file: some by keys, others by tensors of divisors, one a pair of values."""

import math
from typing import TYPE_CHECKING

import numpy as np

from mxconv.arch.config import ModelConfig
from mxconv.arch.gguf.architecture import Architecture
from mxconv.arch.gguf.parts import attentions
from mxconv.arch.gguf.rope_factors import llama3_factors
from mxconv.arch.rope_parameters import RopeParameters
from mxconv.arrays import F32

if TYPE_CHECKING:
    from gguf import GGUFWriter

FACTORS = "rope_freqs.weight"
SHORT_FACTORS, LONG_FACTORS = "rope_factors_short.weight", "rope_factors_long.weight"
STANDS_STILL = 1e30  # so that an angle is 0 in float32
BETAS = (32.0, 1.0)


def far_rope(config: ModelConfig) -> RopeParameters | None:
    """Of the layers that see all positions; where none of them rotates, of those that see a window."""
    ropes = [(mixer.window is not None, mixer.rope) for mixer in attentions(config)]
    found = [rope for is_near, rope in sorted(ropes, key=lambda each: each[0]) if rope is not None]
    return found[0] if found else None


def near_rope(config: ModelConfig) -> RopeParameters | None:
    """Of the layers that see a window."""
    ropes = (mixer.rope for mixer in attentions(config) if mixer.window is not None)
    return next((rope for rope in ropes if rope is not None), None)


def reads_betas(rope: RopeParameters, architecture: Architecture) -> bool:
    """Whether llama.cpp scales with this YaRN's two numbers."""
    return rope.rope_type != "yarn" or architecture.has_betas or (rope.beta_fast, rope.beta_slow) == BETAS


def add_rope(writer: "GGUFWriter", config: ModelConfig, architecture: Architecture) -> None:
    """Hand the keys to a writer."""
    from gguf import RopeScalingType

    rope = far_rope(config)
    if rope is None:
        return
    far = next((mixer for mixer in attentions(config) if mixer.window is None), attentions(config)[0])
    writer.add_rope_dimension_count(rope.rotary_dim(far.head_dim))
    writer.add_rope_freq_base(rope.theta)
    if architecture.has_sections:
        pairs = rope.rotary_dim(far.head_dim) // 2
        writer.add_rope_dimension_sections([(pairs + 2) // 3, (pairs + 1) // 3, pairs // 3, 0])
    near = near_rope(config)
    if architecture.near_rope == "own" and near is not None:
        mixer = next(mixer for mixer in attentions(config) if mixer.window is not None)
        writer.add_rope_freq_base_swa(near.theta)
        if mixer.head_dim != far.head_dim:
            writer.add_rope_dimension_count_swa(near.rotary_dim(mixer.head_dim))
    if rope.rope_type == "linear":
        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope.factor)
    if rope.rope_type in ("llama3", "longrope", "yarn") or architecture.has_temperature:
        writer.add_rope_scaling_orig_ctx_len(rope.original_max_position_embeddings)
    if rope.rope_type == "longrope":
        writer.add_rope_scaling_type(RopeScalingType.LONGROPE)
        writer.add_rope_scaling_attn_factors(rope.multiplier)
    if rope.rope_type == "yarn":
        writer.add_rope_scaling_type(RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope.factor)
        grown = 1 + 0.1 * math.log(rope.factor)  # what llama.cpp multiplies by of itself
        if not math.isclose(rope.multiplier, grown, rel_tol=1e-9):
            writer.add_rope_scaling_attn_factors(rope.multiplier / grown)
        if (rope.beta_fast, rope.beta_slow) != BETAS:
            writer.add_rope_scaling_yarn_beta_fast(rope.beta_fast)
            writer.add_rope_scaling_yarn_beta_slow(rope.beta_slow)


def rope_tensors(
    config: ModelConfig, architecture: Architecture, long_factors: tuple[float, ...] = ()
) -> dict[str, F32]:
    """The tensors, by GGUF's names.

    Args:
        config: the model.
        architecture: whether it asks for them.
        long_factors: LongRoPE's for texts beyond the original context, which mxconv does not run.
    """
    rope = far_rope(config)
    if rope is None:
        return {}
    head_dim = next((mixer.head_dim for mixer in attentions(config) if mixer.rope == rope), config.head_dim)
    if rope.rope_type == "llama3":
        llama3 = llama3_factors(
            head_dim,
            rope.theta,
            rope.factor,
            rope.low_freq_factor,
            rope.high_freq_factor,
            rope.original_max_position_embeddings,
        )
        return {FACTORS: llama3}
    if rope.rope_type == "longrope":
        both = {SHORT_FACTORS: rope.factors, LONG_FACTORS: long_factors}
        return {name: np.array(factors, np.float32) for name, factors in both.items() if factors}
    if not architecture.needs_factors:
        return {}
    factors = np.full(head_dim // 2, rope.factor if rope.rope_type == "proportional" else 1.0, np.float32)
    if rope.rope_type == "proportional":
        factors[int(rope.share * head_dim // 2) :] = STANDS_STILL
    return {FACTORS: factors}
