"""Attention of one position over the positions before it."""

import math

import numpy as np

from mxconv.arrays import F32
from mxconv.codecs.fold import fold_in_place

CHUNK = 64  # positions that are folded together; chunks are added one after another


def attend(
    query: F32,
    keys: F32,
    values: F32,
    scale: float | None = None,
    logit_cap: float | None = None,
    sinks: F32 | None = None,
) -> F32:
    """Softmax-weighted mean of the values, for every head of one position.

    The order of every sum depends on the number of keys alone, so the result does not depend on which other
    positions are evaluated in the same pass. Memory is that of one chunk.

    Args:
        query: (num_heads, head_dim) float32. Heads h * group .. (h + 1) * group - 1 share key-value head h.
        keys: (num_key_value_heads, num_positions, head_dim) float32, as are the values, of perhaps another head_dim.
        scale: of a query times a key; None is 1 / sqrt(head_dim).
        logit_cap: c turns a score s into c * tanh(s / c); None is none.
        sinks: (num_heads,) scores of positions that have no value; None is none.

    Returns:
        (num_heads, head_dim of the values) float32.
    """
    num_heads, head_dim = query.shape
    num_key_value_heads, num_positions, _ = keys.shape
    group = num_heads // num_key_value_heads
    scale = 1 / math.sqrt(head_dim) if scale is None else scale
    scaled: F32 = (query * np.float32(scale)).reshape(num_key_value_heads, group, 1, head_dim)
    chunks = [slice(start, min(start + CHUNK, num_positions)) for start in range(0, num_positions, CHUNK)]

    scores = np.empty((num_key_value_heads, group, num_positions), np.float32)
    for chunk in chunks:
        scores[:, :, chunk] = fold_in_place(scaled * keys[:, None, chunk])
    if logit_cap is not None:
        scores /= np.float32(logit_cap)
        np.tanh(scores, out=scores)
        scores *= np.float32(logit_cap)
    greatest = scores.max(axis=-1)
    total = np.zeros((num_key_value_heads, group), np.float32)
    if sinks is not None:
        own = sinks.reshape(num_key_value_heads, group)
        greatest = np.maximum(greatest, own)
        total += np.exp(own - greatest)
    scores -= greatest[:, :, None]
    shares = np.exp(scores, out=scores)

    mixed = np.zeros((num_key_value_heads, group, values.shape[-1]), np.float32)
    for chunk in chunks:
        mixed += fold_in_place(shares[:, :, chunk, None] * values[:, None, chunk], axis=-2)
        total += fold_in_place(shares[:, :, chunk].copy())
    mixed /= total[..., None]
    return mixed.reshape(num_heads, -1)
