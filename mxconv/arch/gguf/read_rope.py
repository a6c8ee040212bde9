"""The rotations of a GGUF file as the section of config.json that they stand for; the inverse of `rope_keys.py`."""

import math
from collections.abc import Callable
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxconv.arch.gguf.architecture import Architecture
from mxconv.arch.gguf.read_keys import REMEDY, ReadKeys
from mxconv.arch.gguf.rope_factors import llama3_factors
from mxconv.arch.gguf.rope_keys import FACTORS, LONG_FACTORS, SHORT_FACTORS, STANDS_STILL
from mxconv.errors import CheckpointError

LOW_FREQ_FACTOR, HIGH_FREQ_FACTOR, ORIGINAL_POSITIONS = 1.0, 4.0, 8192  # of every Llama 3 since 3.1
Factors = Callable[[str], NDArray[Any] | None]


def rope_section(
    keys: ReadKeys, architecture: Architecture, head_dim: int, rotated: int, theta: float, factors: Factors
) -> dict[str, Any] | None:
    """What scales the rotations; None is nothing.

    Args:
        keys: of the file.
        architecture: which scalings it has.
        head_dim: of layers that see all positions.
        rotated: of its values, how many rotate.
        theta: their base.
        factors: a tensor of the file, if it has it.

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
    """Gemma 4's: the first pairs rotate, all divided by one factor, and the others stand still."""
    moving = found[found < STANDS_STILL]
    is_one = moving.size and (moving == moving[0]).all() and (found[: moving.size] == moving).all()
    if found.shape != (head_dim // 2,) or not is_one or not 1 <= moving[0] < STANDS_STILL:
        raise CheckpointError(
            f"{keys.path}: {FACTORS} of {list(found.shape)} are not {head_dim // 2} factors, equal where pairs rotate "
            f"and {STANDS_STILL:g} where they stand still, as required. {REMEDY}"
        )
    factor, share = float(str(moving[0])), 2 * moving.size / head_dim
    if factor == 1 and share == 1:
        return None
    return {"rope_type": "proportional", "factor": factor, "partial_rotary_factor": share}


def _llama3(keys: ReadKeys, found: NDArray[np.float32], head_dim: int, theta: float) -> dict[str, Any]:
    original = keys.size("rope.scaling.original_context_length", ORIGINAL_POSITIONS)
    factor = float(found.max(initial=1.0))
    if isfinite(factor) and factor >= 1 and found.shape == (head_dim // 2,):
        expected = llama3_factors(head_dim, theta, factor, LOW_FREQ_FACTOR, HIGH_FREQ_FACTOR, original)
        if np.allclose(found, expected, rtol=1e-5, atol=0):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": LOW_FREQ_FACTOR,
                "high_freq_factor": HIGH_FREQ_FACTOR,
                "original_max_position_embeddings": original,
            }
    raise CheckpointError(
        f"{keys.path}: rope_freqs.weight of {list(found.shape)} up to {factor:g} are not the factors of Llama 3.1 with "
        f"{original} original positions; only these are known by their parameters. {REMEDY}"
    )
