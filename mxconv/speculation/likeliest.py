"""The likeliest tokens of rows of logits, as tables remember them."""

import numpy as np

from mxconv.arrays import F32, I32

BLOCK = 64  # logits of which only the greatest is looked at first
FEW = 512  # logits that are sorted sooner than they are looked through


def likeliest(logits: F32, num_candidates: int) -> tuple[I32, F32]:
    """The greatest logits of each row, best first, the lower token where equal, with their softmax probabilities.

    Of many logits two passes and no sort: the k best stand in the k blocks with the greatest maxima.
    """
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):  # of logits that are infinite or NaN
        best = (_order(logits) if logits.shape[1] <= FEW else _in_blocks(logits, num_candidates))[:, :num_candidates]
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        probabilities = shares[np.arange(len(shares))[:, None], best] / shares.sum(axis=1, keepdims=True)
    return best.astype(np.int32), probabilities.astype(np.float32)


def _in_blocks(logits: F32, num_candidates: int) -> "np.ndarray[tuple[int, int], np.dtype[np.intp]]":
    """The columns of the blocks that hold the best, these first."""
    num_rows, vocab_size = logits.shape
    maxima = np.maximum.reduceat(logits, np.arange(0, vocab_size, BLOCK), axis=1)
    blocks = np.sort(_order(maxima)[:, :num_candidates], axis=1)  # ascending, so that equal logits stay in order
    places = (blocks[:, :, None] * BLOCK + np.arange(BLOCK)).reshape(num_rows, -1)
    inside = np.take_along_axis(logits, places.clip(max=vocab_size - 1), 1)
    inside[places >= vocab_size] = np.nan  # sorted behind everything else
    return np.take_along_axis(places, _order(inside), 1)


def _order(values: F32) -> "np.ndarray[tuple[int, int], np.dtype[np.intp]]":
    """Columns of each row from the greatest value to the least, equal ones as they stand."""
    return np.argsort(-values, axis=1, kind="stable")
