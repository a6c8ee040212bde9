"""Llama 3.1's RoPE scaling as GGUF has it: a tensor of divisors, one a pair, instead of its four parameters."""

import math

import numpy as np

from mxconv.arrays import F32


def llama3_factors(
    head_dim: int, theta: float, factor: float, low_freq_factor: float, high_freq_factor: float, original_positions: int
) -> F32:
    """What each pair's frequency is divided by, (head_dim / 2,) float32.

    Source:
        Llama 3.1's scaling as in the transformers documentation, see `mxconv.engine.rope`; that llama.cpp divides by
        the tensor `rope_freqs.weight`, from its function `ggml_rope_ext`.
    """
    frequencies = theta ** -(np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    turns = original_positions * frequencies / (2 * math.pi)
    kept = np.clip((turns - low_freq_factor) / (high_freq_factor - low_freq_factor), 0, 1)
    return (1 / (kept + (1 - kept) / factor)).astype(np.float32)
