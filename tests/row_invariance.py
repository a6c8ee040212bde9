"""Whether the logits of a position depend on the token prefix alone, bit for bit: the check, for any decoder."""

from collections.abc import Sequence

import numpy as np

from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.engine.sequence_rows import SequenceRows
from mxconv.engine.tree import Tree

WIDTHS = (1, 2, 3, 5, 8, 16, 33, 64)


def logits_in_steps(decoder: Decoder, token_ids: list[int], widths: Sequence[int]) -> np.ndarray:
    """All logits when the tokens go in by these numbers, the last of which is repeated."""
    cache = KVCache(decoder.config, capacity=8)
    parts = []
    while cache.length < len(token_ids):
        width = widths[min(len(parts), len(widths) - 1)]
        parts.append(decoder.forward(token_ids[cache.length : cache.length + width], cache))
    return np.concatenate(parts)


def assert_same_bits(found: np.ndarray, expected: np.ndarray, how: str) -> None:
    """Bits, not values: -0 differs from 0, and a NaN may equal itself."""
    differs = (found.view(np.uint32) != expected.view(np.uint32)).any(axis=1)
    assert not differs.any(), f"{how}: logits of position {int(differs.argmax())} differ"


def assert_invariant(
    decoder: Decoder, token_ids: list[int], expected: np.ndarray, widths: Sequence[int] = WIDTHS
) -> None:
    """At every width the logits are those expected."""
    for width in widths:
        assert_same_bits(logits_in_steps(decoder, token_ids, [width]), expected, f"width {width}")


def logits_after_rollback(
    decoder: Decoder, token_ids: list[int], kept: int, rejected: list[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Logits of the first `kept` tokens, and of the rest after others were tried after those and taken back."""
    cache = KVCache(decoder.config, capacity=1)
    first = decoder.forward(token_ids[:kept], cache)
    decoder.forward(rejected, cache)
    cache.truncate(kept)
    return first, decoder.forward(token_ids[kept:], cache)


def assert_batch_invariant(decoder: Decoder, token_ids: list[int], rows: Sequence[int]) -> KVCache:
    """Rows of a tree have the bits of their paths, beside another sequence, and so has what follows a kept path.

    Args:
        decoder: any.
        token_ids: 40 and more.
        rows: of the tree's six, those that are compared.

    Returns:
        The cache of the tree's text, its path 0, 1, 3 kept.
    """
    cache, other = KVCache(decoder.config), KVCache(decoder.config)
    decoder.forward(token_ids[:24], cache)
    decoder.forward(token_ids[7:20], other)
    tokens, tree = [3, 9, 4, 80, 17, 60], Tree([-1, 0, 0, 1, 2, -1])
    of_tree, beside = decoder.forward_batch([SequenceRows(tokens, cache, tree), SequenceRows(token_ids[20:23], other)])

    def alone(path: Sequence[int]) -> np.ndarray:
        text = [*token_ids[:24], *(tokens[row] for row in path)]
        return decoder.forward(text, KVCache(decoder.config), last_only=True)

    for row in rows:
        assert_same_bits(of_tree[row : row + 1], alone(tree.path(row)), f"row {row} of a tree")
    expected = decoder.forward(token_ids[7:23], KVCache(decoder.config))[13:]
    assert_same_bits(beside, expected, "another sequence")
    cache.keep(24, tree.path(3))
    tokens.append(11)
    after = decoder.forward([11], cache)
    assert_same_bits(after, alone([*tree.path(3), 6]), "after a kept path")
    return cache
