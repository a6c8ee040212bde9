"""Trees of rows and what is refused; that each row's logits are those of its path alone: test_sequence_rows.py."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mxconv.engine.cache import KVCache
from mxconv.engine.tree import Tree
from mxconv.errors import ModelError


def test_depths_paths_and_masks_say_the_same() -> None:
    tree = Tree([-1, 0, 0, -1, 2, 4])
    assert tree.depths == [0, 1, 1, 0, 2, 3]
    assert tree.path(5) == [0, 2, 4, 5]
    for row in range(6):
        assert int(tree.masks[row]) == sum(1 << above for above in tree.path(row))
    assert Tree.chain(3).is_chain and not tree.is_chain


def test_trees_that_are_none_are_errors() -> None:
    for parents, message in (
        ([], "tree: 0 rows; at least one is required"),
        ([0], "tree: the parent of row 0 is 0; an earlier row, or -1, is required"),
        ([-1, -2], "tree: the parent of row 1 is -2"),
        ([-1] * 65, "tree: 65 rows; at most 64 are evaluated in a pass"),
    ):
        with pytest.raises(ModelError, match=f"^{message}"):
            Tree(parents)
    with pytest.raises(ModelError, match=r"^tree: 0 rows that the cache does not hold, of 2; at least one is"):
        Tree([-1, 0], num_cached=2)
    assert Tree.chain(100).depths[-1] == 99  # a prompt


def test_a_tree_may_be_wider_than_the_positions_that_are_left(tiny_oracle: Callable[[str], Any]) -> None:
    decoder = tiny_oracle("llama").decoder
    cache = KVCache(decoder.config)
    decoder.forward([1] * (decoder.config.max_position_embeddings - 1), cache)
    assert decoder.forward([1, 2, 3], cache, tree=Tree([-1, -1, -1])).shape[0] == 3
    with pytest.raises(ModelError, match="257 positions; the model has 256"):
        cache.truncate(decoder.config.max_position_embeddings - 1)
        decoder.forward([1, 2, 3], cache, tree=Tree([-1, -1, 1]))


def test_a_cache_keeps_the_rows_that_it_is_told_to_and_no_others(tiny_oracle: Callable[[str], Any]) -> None:
    cache = KVCache(tiny_oracle("llama").decoder.config)
    cache.reserve(6)
    rows = np.broadcast_to(np.arange(6, dtype=np.float32)[:, None, None], (6, 2, 12))
    for layer in range(3):
        cache.write(layer, rows, rows)
    cache.advance(6)
    cache.keep(2, [1, 3])
    assert cache.length == 4
    assert [array[0, 0, :4, 0].tolist() for array in cache.arrays] == [[0, 1, 3, 5]] * 2
    for rows in ([2], [1, 1], [1, 0], [-1]):
        with pytest.raises(ModelError, match="KV cache: rows"):
            cache.keep(2, rows)
