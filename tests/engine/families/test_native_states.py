"""States on the native decoder: whatever was tried, logits and states are those of tokens decoded one at a time."""

from collections.abc import Callable, Sequence
from functools import cache as cached
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native_models import dense, native_copy, with_format
from row_invariance import assert_same_bits, logits_in_steps

from mxconv.codecs.float16 import BF16, FP16
from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.engine.matrices import Matrices
from mxconv.engine.sequence_rows import SequenceRows
from mxconv.engine.tree import Tree
from mxconv.engine.weights import ModelWeights
from mxconv.kernels.engine import choose_engine, native_names
from mxconv.speculation.session import borrowed

pytest.importorskip("family_checkpoints", reason="torch and transformers make these checkpoints")
IMPLEMENTATIONS = native_names()
KINDS = ["lfm2", "mamba2", "qwen3_next", "granitemoehybrid"]  # of every kind of state, and fused matrices

pytestmark = pytest.mark.skipif(not IMPLEMENTATIONS, reason="the extension is not built on this machine")

Native = Callable[..., Decoder]


@pytest.fixture(scope="module")
def native(family_of: Callable[[str], Any]) -> Native:
    """Makes (once) a decoder of a kind of state, on a kernel and some threads."""

    @cached
    def make(kind: str, kernel: str = IMPLEMENTATIONS[0], num_threads: int = 1) -> Decoder:
        family, matrices = family_of(kind), Matrices(choose_engine(kernel, num_threads))
        return native_copy(family.config, with_format(family.weights, BF16), matrices, dense)

    return make


class Text:
    """A cache, the tokens that it should hold, and the logits after each."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.cache = KVCache(decoder.config)
        self.tokens: list[int] = []
        self.logits: list[np.ndarray] = []

    def feed(self, tokens: Sequence[int], tree: Tree | None = None) -> None:
        self.logits += list(self.decoder.forward(tokens, self.cache, tree=tree))
        self.tokens += tokens

    def keep(self, start: int, rows: Sequence[int]) -> None:
        self.cache.keep(start, rows)
        self.tokens[start:] = [self.tokens[start + row] for row in rows]
        self.logits[start:] = [self.logits[start + row] for row in rows]

    def cut(self, length: int) -> None:
        self.cache.truncate(length)
        del self.tokens[length:], self.logits[length:]


def try_something(text: Text, draw: st.DataObject, is_lent: bool = False) -> None:
    """One thing that decoders and drafts do with a cache."""
    start, kinds = len(text.tokens), ["chain", "tree", "grown", "cut", *([] if is_lent else ["lent"])]
    kind = draw.draw(st.sampled_from(kinds))
    if kind == "chain":
        text.feed(tokens_of(draw, draw.draw(st.integers(1, 30))))
        text.keep(start, range(draw.draw(st.integers(0, len(text.tokens) - start))))
    elif kind in ("tree", "grown"):
        parents: list[int] = []
        for _ in range(1 if kind == "tree" else draw.draw(st.integers(1, 3))):
            num_cached, more = len(parents), draw.draw(st.integers(1, 7))
            parents += [draw.draw(st.integers(-1, row - 1)) for row in range(num_cached, num_cached + more)]
            text.feed(tokens_of(draw, more), Tree(parents[:], num_cached))
        text.keep(start, Tree(parents).path(draw.draw(st.integers(-1, len(parents) - 1))))
    elif kind == "cut":
        text.cut(text.cache.reachable(max(start - draw.draw(st.integers(0, 40)), 0)) if not is_lent else start)
    else:
        lend(text, draw)


def lend(text: Text, draw: st.DataObject) -> None:
    """To a draft: the decoder itself."""
    length, own, logits = len(text.tokens), list(text.tokens), list(text.logits)
    start = text.cache.reachable(max(length - draw.draw(st.integers(0, 9)), 0))
    with borrowed(text.cache, start, length - start):
        del text.tokens[start:], text.logits[start:]
        try_something(text, draw, is_lent=True)
    text.tokens, text.logits = own, logits


def tokens_of(draw: st.DataObject, count: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(draw.draw(st.integers(0, 99))).integers(0, 96, count)]


@settings(max_examples=25, deadline=None)
@given(data=st.data(), kind=st.sampled_from(KINDS), num_threads=st.sampled_from([1, 2, 3]))
def test_whatever_was_tried_logits_and_states_are_those_of_tokens_one_at_a_time(
    native: Native, data: st.DataObject, kind: str, num_threads: int
) -> None:
    kernel = data.draw(st.sampled_from(IMPLEMENTATIONS))
    text = Text(native(kind, kernel, num_threads))
    for _ in range(data.draw(st.integers(1, 8))):
        if len(text.tokens) < 170:
            try_something(text, data)
            assert text.cache.length == len(text.tokens)
    text.feed([5])
    alone, cache = native(kind, kernel, 1), KVCache(text.decoder.config)
    expected = np.concatenate([alone.forward([token], cache) for token in text.tokens])
    assert_same_bits(np.array(text.logits), expected, kind)
    found, wanted = text.cache.states, cache.states
    assert found is not None and wanted is not None
    assert found.windows[0].tobytes() == wanted.windows[0].tobytes()  # the running state
    assert found.memories[0].tobytes() == wanted.memories[0].tobytes()


@pytest.mark.parametrize("kernel", IMPLEMENTATIONS)
def test_rates_of_any_size_are_those_of_numpy(family_of: Callable[[str], Any], kernel: str) -> None:
    """softplus(x) is e^x far below zero, and x far above."""
    family = family_of(("granitemoehybrid", "qwen3_next")[IMPLEMENTATIONS.index(kernel) % 2])
    weights = with_format(family.weights, FP16)
    rates = (np.array([-90, -17, -1, 0.4, 19.9, 20.1, 60], np.float32), np.zeros(7, np.float32))
    extreme = {
        name: np.resize(rates[name.endswith("A_log")], len(vector))
        for name, vector in weights.vectors.items()
        if name.endswith(("dt_bias", "A_log"))
    }
    assert extreme
    changed = ModelWeights(weights.matrices, {**weights.vectors, **extreme}, weights.stacks, weights.arrays)
    expected = Decoder(family.config, changed, "numpy").forward(family.token_ids[:20], KVCache(family.config))
    found = native_copy(family.config, changed, Matrices(choose_engine(kernel, 1)), dense)
    logits = found.forward(family.token_ids[:20], KVCache(family.config))
    np.testing.assert_allclose(logits, expected, atol=2e-4 * float(np.abs(expected).max()))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_more_than_a_slice_and_trees_at_its_end_have_the_bits_of_their_paths(native: Native, kind: str) -> None:
    """256 tokens go through the layers together: one text is cut there, and the tree of another would be."""
    decoder, generator = native(kind, num_threads=2), np.random.default_rng(2)
    first, second, third, tree = ([int(t) for t in generator.integers(0, 96, count)] for count in (180, 70, 20, 12))
    parents = [-1, 0, 0, 1, 1, 2, -1, 6, 6, 3, 9, 9]
    caches = [KVCache(decoder.config) for _ in range(4)]
    for cache in caches[2:]:
        decoder.forward(third, cache)
    found = decoder.forward_batch(
        [
            SequenceRows(first, caches[0]),
            SequenceRows(second, caches[1]),
            SequenceRows(tree, caches[2], Tree(parents)),
            SequenceRows(first[:150] + second, caches[3]),
        ]
    )
    assert_same_bits(found[0], logits_in_steps(decoder, first, [7]), "before the cut")
    assert_same_bits(found[1], logits_in_steps(decoder, second, [9]), "before the tree")
    last = logits_in_steps(decoder, [*third, *first[:150], *second], [33])[len(third) :]
    assert_same_bits(found[3], last, "across the next cut")
    for row in range(len(tree)):
        path = [tree[above] for above in Tree(parents).path(row)]
        alone = logits_in_steps(decoder, [*third, *path], [len(third), 1])
        assert_same_bits(found[2][row : row + 1], alone[-1:], f"row {row} of the tree")
