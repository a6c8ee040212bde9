"""Arithmetic in which a row's result depends on that row alone, bit for bit.

A matrix product from a BLAS adds in an order that it picks by the shape of the batch, so the logits of a token
move in their last bits when other tokens are evaluated beside it. Here they do not. Additions and
multiplications go element by element, where every IEEE operation has one result, and every sum is a fold whose
order depends on the length of the sum alone. `exp` is called for one row at a time, because a vectorized
implementation may treat the end of an array differently from its middle.
"""

from collections.abc import Callable

import numpy as np

from mxconv.arrays import F32
from mxconv.codecs.fold import fold_in_place

TILE_PRODUCTS = 1 << 17  # 512 KB of float32: the products of a tile stay in a core's cache while they are folded
ROW_ALIGNMENT = 16  # rows in a vnni8 tile: a provider of packed rows never has to split one


def linear(x: F32, out_features: int, weight_rows: Callable[[int, int], F32]) -> F32:
    """Multiply by a matrix that is decoded a few rows at a time, so that memory stays flat.

    Output (t, o) is fold(weight row o * x row t): every token and every matrix format that decodes to the same
    float32 weights gets the same bits.

    Args:
        x: (num_tokens, in_features) float32.
        out_features: rows of the matrix.
        weight_rows: (start, stop) to rows start..stop of the matrix, (stop - start, in_features) float32. Called
            once a tile, in ascending order; start is a multiple of 16.
    """
    num_tokens, in_features = x.shape
    result = np.empty((num_tokens, out_features), np.float32)
    rows_per_tile = max(TILE_PRODUCTS // in_features // ROW_ALIGNMENT, 1) * ROW_ALIGNMENT
    for start in range(0, out_features, rows_per_tile):
        stop = min(start + rows_per_tile, out_features)
        weights = weight_rows(start, stop)
        tokens_per_tile = max(TILE_PRODUCTS // weights.size, 1)
        for first in range(0, num_tokens, tokens_per_tile):
            last = min(first + tokens_per_tile, num_tokens)
            products = x[first:last, None, :] * weights  # (tokens, rows, in_features)
            result[first:last, start:stop] = fold_in_place(products)
    return result


def rms_norm(x: F32, weight: F32, eps: float) -> F32:
    """Scale each row of (..., n) float32 to a root mean square of one, then by `weight`, (n,) float32."""
    mean_square = fold_in_place(x * x)[..., None] / np.float32(x.shape[-1])
    inverse: F32 = np.float32(1) / np.sqrt(mean_square + np.float32(eps))
    return x * inverse * weight


def silu(x: F32) -> F32:
    """x * sigmoid(x), for (num_tokens, n) float32."""
    return x / (np.float32(1) + _decay(x))


def sigmoid(x: F32) -> F32:
    """1 / (1 + exp(-x)), for (num_tokens, n) float32."""
    result: F32 = np.float32(1) / (np.float32(1) + _decay(x))
    return result


def _decay(x: F32) -> F32:
    """exp(-x)."""
    decay = np.empty_like(x)
    with np.errstate(over="ignore"):  # infinite from x = -89 on, and what is made of it rightly 0
        for row, negated in zip(decay, -x, strict=True):
            np.exp(negated, out=row)
    return decay
