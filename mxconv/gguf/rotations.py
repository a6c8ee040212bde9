"""Rotations in a GGUF file: some by keys, others by tensors of divisors, one a pair of values; written, and read.

What is read becomes the section of config.json that it is written from.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mxconv.arch.config import ModelConfig
from mxconv.arch.rope_parameters import RopeParameters
from mxconv.arrays import F32
from mxconv.errors import CheckpointError
from mxconv.gguf.architectures import Architecture, attentions
from mxconv.gguf.gguf_header import REMEDY, ReadKeys

if TYPE_CHECKING:
    from gguf import GGUFWriter

FACTORS = "rope_freqs.weight"
SHORT_FACTORS, LONG_FACTORS = "rope_factors_short.weight", "rope_factors_long.weight"
NO_ROTATION = 1e30  # divides an angle to 0 in float32
BETAS = (32.0, 1.0)
ORIGINAL_POSITIONS = 8192  # of every Llama 3 since 3.1
Factors = Callable[[str], NDArray[Any] | None]


def far_rope(config: ModelConfig) -> RopeParameters | None:
    """The rotation of layers that see all positions; where none of them rotates, of those that see a window."""
    ropes = [(mixer.window is not None, mixer.rope) for mixer in attentions(config)]
    found = [rope for is_near, rope in sorted(ropes, key=lambda each: each[0]) if rope is not None]
    return found[0] if found else None


def near_rope(config: ModelConfig) -> RopeParameters | None:
    """The rotation of layers that see a window."""
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
    """The tensors that the architecture asks for, by GGUF's names; `long_factors` are LongRoPE's for texts beyond the
    original context, which mxconv does not run."""
    rope = far_rope(config)
    if rope is None:
        return {}
    head_dim = next((mixer.head_dim for mixer in attentions(config) if mixer.rope == rope), config.head_dim)
    if rope.rope_type == "llama3":
        return {FACTORS: llama3_factors(head_dim, rope)}
    if rope.rope_type == "longrope":
        both = {SHORT_FACTORS: rope.factors, LONG_FACTORS: long_factors}
        return {name: np.array(factors, np.float32) for name, factors in both.items() if factors}
    if not architecture.needs_factors:
        return {}
    factors = np.full(head_dim // 2, rope.factor if rope.rope_type == "proportional" else 1.0, np.float32)
    if rope.rope_type == "proportional":
        factors[int(rope.share * head_dim // 2) :] = NO_ROTATION
    return {FACTORS: factors}


def llama3_factors(head_dim: int, rope: RopeParameters) -> F32:
    """Divisors of each pair's frequency by Llama 3.1's scaling, (head_dim / 2,) float32.

    Source:
        Llama 3.1's scaling as in the transformers documentation, see `mxconv.engine.rope`; that llama.cpp divides by
        the tensor `rope_freqs.weight`, from its function `ggml_rope_ext`.
    """
    frequencies = rope.theta ** -(np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    turns = rope.original_max_position_embeddings * frequencies / (2 * math.pi)
    kept = np.clip((turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor), 0, 1)
    return (1 / (kept + (1 - kept) / rope.factor)).astype(np.float32)


def rope_section(
    keys: ReadKeys, architecture: Architecture, head_dim: int, rotated: int, theta: float, factors: Factors
) -> dict[str, Any] | None:
    """The scaling of rotations in layers that see all positions, where `rotated` values of a head rotate by the base
    `theta`; None is none. `factors` gives a tensor of the file, if it has it.

    Raises:
        CheckpointError: a scaling that the architecture does not have, or factors of no known one.
    """
    kind = keys.get("rope.scaling.type") or "none"
    known = ["none", *(name for name in ("linear", "yarn", "longrope") if name in architecture.scalings)]
    if kind not in known:
        keys.reject("rope.scaling.type", f"{', '.join(known)}, or the factors of Llama 3.1 are supported")
    if kind == "linear":
        return {"rope_type": "linear", "factor": keys.number("rope.scaling.factor")}
    if kind == "yarn":
        return _yarn(keys, architecture)
    if kind == "longrope":
        return _longrope(keys, factors(SHORT_FACTORS), factors(LONG_FACTORS), rotated)
    found = factors(FACTORS)
    if found is None:
        return None
    if architecture.needs_factors:
        return _proportional(keys, found.astype(np.float32), head_dim)
    return _llama3(keys, found.astype(np.float32), head_dim, theta)


def _yarn(keys: ReadKeys, architecture: Architecture) -> dict[str, Any]:
    factor = keys.number("rope.scaling.factor")
    section: dict[str, Any] = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": keys.size("rope.scaling.original_context_length"),
        "beta_fast": keys.number("rope.scaling.yarn_beta_fast", 32.0),
        "beta_slow": keys.number("rope.scaling.yarn_beta_slow", 1.0),
    }
    if keys.has("rope.scaling.attn_factor"):  # llama.cpp multiplies by the rest of itself
        grown = 1 + 0.1 * math.log(factor)
        section["attention_factor"] = float(str(np.float32(keys.number("rope.scaling.attn_factor") * grown)))
    if architecture.rounds_yarn:
        section["truncate"] = False
    return section


def _longrope(keys: ReadKeys, short: NDArray[Any] | None, long: NDArray[Any] | None, rotated: int) -> dict[str, Any]:
    long = short if long is None else long
    for name, found in ((SHORT_FACTORS, short), (LONG_FACTORS, long)):
        if found is None or found.shape != (rotated // 2,) or not (np.isfinite(found) & (found > 0)).all():
            raise CheckpointError(
                f"{keys.path}: tensor {name!r} is {'missing' if found is None else list(found.shape)}; {rotated // 2} "
                f"finite numbers above 0, one a pair that rotates, are required. {REMEDY}"
            )
    original = keys.size("rope.scaling.original_context_length")
    section: dict[str, Any] = {
        "rope_type": "longrope",
        "short_factor": _decimals(short),
        "long_factor": _decimals(long),
        "original_max_position_embeddings": original,
    }
    factor, attention = keys.size("context_length") / original, keys.number("rope.scaling.attn_factor", 1.0)
    grown = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 and original > 1 else 1.0
    if np.float32(attention) != np.float32(grown):  # by this one multiplies what does not say another
        section["attention_factor"] = attention
    return section


def _decimals(found: NDArray[Any] | None) -> list[float]:
    assert found is not None
    return [float(str(each)) for each in found.astype(np.float32)]


def _proportional(keys: ReadKeys, found: NDArray[np.float32], head_dim: int) -> dict[str, Any] | None:
    """Gemma 4's: the first pairs rotate, all divided by one factor, and the others do not."""
    moving = found[found < NO_ROTATION]
    is_one = moving.size and (moving == moving[0]).all() and (found[: moving.size] == moving).all()
    if found.shape != (head_dim // 2,) or not is_one or not 1 <= moving[0] < NO_ROTATION:
        raise CheckpointError(
            f"{keys.path}: {FACTORS} of {list(found.shape)} are not {head_dim // 2} factors, equal where pairs rotate "
            f"and {NO_ROTATION:g} where they do not, as required. {REMEDY}"
        )
    factor, share = float(str(moving[0])), 2 * moving.size / head_dim
    if factor == 1 and share == 1:
        return None
    return {"rope_type": "proportional", "factor": factor, "partial_rotary_factor": share}


def _llama3(keys: ReadKeys, found: NDArray[np.float32], head_dim: int, theta: float) -> dict[str, Any]:
    original = keys.size("rope.scaling.original_context_length", ORIGINAL_POSITIONS)
    factor = float(found.max(initial=1.0))
    if math.isfinite(factor) and factor >= 1 and found.shape == (head_dim // 2,):
        # the two factors that it has by default are those of every Llama 3 since 3.1
        rope = RopeParameters(theta, "llama3", factor, original_max_position_embeddings=original)
        if np.allclose(found, llama3_factors(head_dim, rope), rtol=1e-5, atol=0):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": rope.low_freq_factor,
                "high_freq_factor": rope.high_freq_factor,
                "original_max_position_embeddings": original,
            }
    raise CheckpointError(
        f"{keys.path}: rope_freqs.weight of {list(found.shape)} up to {factor:g} are not the factors of Llama 3.1 with "
        f"{original} original positions; only these are known by their parameters. {REMEDY}"
    )
