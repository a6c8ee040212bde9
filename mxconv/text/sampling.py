"""Choosing the next token from logits."""

from mxconv.arrays import F32, I64


def greedy(logits: F32) -> I64:
    """The most likely token of each position; the lowest id among equals.

    Args:
        logits: (..., vocab_size) float32.

    Returns:
        (...,) int64 token ids.
    """
    token_ids: I64 = logits.argmax(axis=-1)
    return token_ids
