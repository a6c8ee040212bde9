"""The likeliest tokens of rows of logits, as tables remember them."""

import numpy as np

from mxconv.arrays import F32, I32

BLOCK = 64  # logits of which only the greatest is looked at first


def likeliest(logits: F32, num_candidates: int) -> tuple[I32, F32]:
    """The greatest logits of each row, best first, the lower token where equal, with their softmax probabilities.

    Two passes over the logits and no sort of them: the k best stand in the k blocks with the greatest maxima.
    """
    num_rows, vocab_size = logits.shape
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):  # of logits that are infinite or NaN
        firsts = np.arange(0, vocab_size, BLOCK)
        maxima = np.maximum.reduceat(logits, firsts, axis=1)
        blocks = np.sort(_order(maxima)[:, :num_candidates], axis=1)  # ascending, so that equal logits stay in order
        places = (blocks[:, :, None] * BLOCK + np.arange(BLOCK)).reshape(num_rows, -1)
        inside = np.take_along_axis(logits, places.clip(max=vocab_size - 1), 1)
        inside[places >= vocab_size] = np.nan  # sorted behind everything else
        best = np.take_along_axis(places, _order(inside)[:, :num_candidates], 1)
        greatest = maxima.max(axis=1, keepdims=True)
        sums = np.exp(logits - greatest).sum(axis=1, keepdims=True)
        probabilities = np.exp(np.take_along_axis(logits, best, 1) - greatest) / sums
    return best.astype(np.int32), probabilities.astype(np.float32)


def _order(values: F32) -> "np.ndarray[tuple[int, int], np.dtype[np.intp]]":
    """Columns of each row from the greatest value to the least, equal ones as they stand."""
    return np.argsort(-values, axis=1, kind="stable")
