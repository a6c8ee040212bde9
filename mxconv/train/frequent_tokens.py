"""The tokens that come most often in the texts of a training: what a head knows that has a vocabulary of its own."""

from collections.abc import Iterable

import numpy as np

from mxconv.arrays import I64
from mxconv.errors import ModelError
from mxconv.train.windows import Windows


def frequent_tokens(texts: Iterable[Windows], count: int, vocab_size: int) -> I64:
    """The most frequent ones, (count,) int64, rising; among those that come as often the lower ids.

    Args:
        texts: of all stages.
        count: how many; tokens that never come fill up.
        vocab_size: of the target.

    Raises:
        ModelError: it does not have so many.

    Examples:
        >>> frequent_tokens([Windows(np.array([[5, 3, 5], [3, 1, 5]], np.int32))], 3, 8).tolist()
        [1, 3, 5]
    """
    if not 1 <= count <= vocab_size:
        raise ModelError(
            f"draft vocabulary of {count} tokens: the target has {vocab_size}; 1 to so many are required. Choose "
            "another size."
        )
    counts = np.zeros(vocab_size, np.int64)
    for windows in texts:
        counts += np.bincount(windows.token_ids.ravel(), minlength=vocab_size)
    return np.sort(np.argsort(-counts, kind="stable")[:count])
