"""Mixers with states, by NumPy and by native kernels: whatever was tried and taken back, logits and states are those of
tokens decoded one at a time.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
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
from mxconv.engine.state_cache import TIP, most_bytes
from mxconv.engine.tree import Tree
from mxconv.engine.weights import ModelWeights
from mxconv.errors import ModelError
from mxconv.kernels.engine import choose_engine, native_names
from mxconv.speculation.session import borrowed

pytest.importorskip("family_checkpoints", reason="torch and transformers make these checkpoints")
IMPLEMENTATIONS = native_names()
KINDS = ["lfm2", "mamba2", "qwen3_next", "granitemoehybrid"]  # of every kind of state, and fused matrices
needs_native = pytest.mark.skipif(not IMPLEMENTATIONS, reason="the extension is not built on this machine")

DecoderOf = Callable[..., Decoder]


@pytest.fixture(scope="module")
def decoder_of(family_of: Callable[[str], Any]) -> DecoderOf:
    """Makes (once) a decoder of a kind of state, on a kernel and some threads."""

    @cached
    def make(kind: str, kernel: str = (*IMPLEMENTATIONS, "numpy")[0], num_threads: int = 1) -> Decoder:
        family, matrices = family_of(kind), Matrices(choose_engine(kernel, num_threads))
        config = replace(family.config, max_position_embeddings=2048)
        return native_copy(config, with_format(family.weights, BF16), matrices, dense)

    return make


class Text:
    """A cache, the tokens that it should hold, and the logits after each; None where a pass made none."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.cache = KVCache(decoder.config)
        self.tokens: list[int] = []
        self.logits: list[np.ndarray | None] = []

    def feed(self, count: int, tree: Tree | None = None, is_prompt: bool = False) -> None:
        """A pass of as many tokens, each of which is new."""
        tokens = [int(token) for token in np.random.default_rng(len(self.tokens)).integers(0, 96, count)]
        logits = list(self.decoder.forward(tokens, self.cache, is_prompt, tree))
        self.logits += [None] * (count - len(logits)) + logits
        self.tokens += tokens

    def fail(self, count: int) -> None:
        """A pass that ends half-way: it leaves anything in the running state."""
        self.cache.begin(Tree.chain(count), count)
        states = self.cache.states
        assert states is not None
        states.windows[TIP], states.memories[TIP] = np.nan, np.nan

    def keep(self, start: int, rows: Sequence[int]) -> None:
        self.cache.keep(start, rows)
        self.tokens[start:] = [self.tokens[start + row] for row in rows]
        self.logits[start:] = [self.logits[start + row] for row in rows]

    def cut(self, length: int) -> None:
        self.cache.truncate(length)
        del self.tokens[length:], self.logits[length:]

    def check(self, alone: Decoder) -> None:
        """Logits and the running state are those of tokens one at a time."""
        self.feed(1)
        cache = KVCache(alone.config)
        expected = np.concatenate([alone.forward([token], cache) for token in self.tokens])
        known = [place for place, logits in enumerate(self.logits) if logits is not None]
        assert_same_bits(np.array([self.logits[place] for place in known]), expected[known], alone.config.model_type)
        found, wanted = self.cache.states, cache.states
        assert found is not None and wanted is not None and self.cache.length == len(self.tokens)
        assert found.windows[TIP].tobytes() == wanted.windows[TIP].tobytes()
        assert found.memories[TIP].tobytes() == wanted.memories[TIP].tobytes()


def try_something(text: Text, draw: st.DataObject, depth: int = 0, floor: int = 0) -> None:
    """One thing that decoders and drafts do with a cache; a borrower leaves what is before its `floor`."""
    kinds = ["chain", "prompt", "tree", "grown", "cut", "failed", *(["lent"] * (depth < 2))]
    start, kind = len(text.tokens), draw.draw(st.sampled_from(kinds))
    if kind == "chain":
        number = draw.draw(st.integers(1, 9))
        text.feed(number)
        text.keep(start, range(draw.draw(st.integers(0, number))))
    elif kind == "prompt":
        text.feed(draw.draw(st.integers(1, 90)), is_prompt=True)
    elif kind in ("tree", "grown"):
        parents: list[int] = []
        for _ in range(1 if kind == "tree" else draw.draw(st.integers(1, 4))):
            num_cached, more = len(parents), draw.draw(st.integers(1, 7))
            parents += [draw.draw(st.integers(-1, row - 1)) for row in range(num_cached, num_cached + more)]
            text.feed(more, Tree(parents[:], num_cached))
        text.keep(start, Tree(parents).path(draw.draw(st.integers(-1, len(parents) - 1))))
    elif kind == "cut":
        length = text.cache.reachable(max(start - draw.draw(st.integers(0, 70)), floor))
        if length >= floor:
            text.cut(length)
    elif kind == "failed":
        text.fail(draw.draw(st.integers(1, 80)))
    else:
        begin = text.cache.reachable(max(start - draw.draw(st.sampled_from([0, 0, 3, 20, 200])), floor))
        if begin >= floor:
            with lent(text, begin):
                for _ in range(draw.draw(st.integers(1, 3))):
                    try_something(text, draw, depth + 1, begin)


@contextmanager
def lent(text: Text, start: int) -> Iterator[None]:
    """The cache from `start` on is a draft's for a while."""
    tokens, logits = list(text.tokens), list(text.logits)
    with borrowed(text.cache, start, len(tokens) - start):
        del text.tokens[start:], text.logits[start:]
        yield
    text.tokens, text.logits = tokens, logits


@settings(max_examples=30, deadline=None)
@given(data=st.data(), kind=st.sampled_from(KINDS), num_threads=st.sampled_from([1, 2, 3]))
def test_whatever_was_tried_logits_and_states_are_those_of_tokens_one_at_a_time(
    decoder_of: DecoderOf, data: st.DataObject, kind: str, num_threads: int
) -> None:
    kernel = data.draw(st.sampled_from([*IMPLEMENTATIONS, "numpy"]))
    text = Text(decoder_of(kind, kernel, num_threads))
    for _ in range(data.draw(st.integers(1, 10))):
        if len(text.tokens) < 170:
            try_something(text, data)
    text.check(decoder_of(kind, kernel, 1))


def test_a_pass_that_failed_is_forgotten_where_others_begin_anew(decoder_of: DecoderOf) -> None:
    text = Text(decoder_of("mamba2"))
    text.feed(65, is_prompt=True)  # of which the first state is gone
    text.fail(66)
    with lent(text, 0):
        text.feed(1)
    text.check(text.decoder)


def test_at_least_64_rows_can_be_taken_back_from_a_long_text_and_more_where_they_wanted_logits(
    decoder_of: DecoderOf,
) -> None:
    text = Text(decoder_of("mamba2"))
    text.feed(500, is_prompt=True)
    assert text.cache.reachable(436) == 436
    assert text.cache.reachable(435) == 0
    for _ in range(300):
        text.feed(1)
        length = len(text.tokens)
        assert text.cache.reachable(length - 64) == length - 64
    text.feed(150)
    text.keep(800, range(2))
    text.check(text.decoder)


def test_a_text_whose_states_are_gone_says_so(decoder_of: DecoderOf) -> None:
    text = Text(decoder_of("mamba2"))
    text.feed(300, is_prompt=True)
    with pytest.raises(ModelError, match=r"truncation to 7 positions, whose states are gone; 300 are there"):
        text.cut(7)
    text.cut(0)
    text.feed(3)
    text.check(text.decoder)


@settings(max_examples=15)
@given(st.lists(st.tuples(st.integers(1, 64), st.integers(0, 64)), min_size=1, max_size=60), st.integers(1, 512))
def test_a_text_takes_no_more_than_is_counted_for_it(
    decoder_of: DecoderOf, rounds: list[tuple[int, int]], piece: int
) -> None:
    """A prompt in pieces, then rounds of which some rows stay."""
    cache = KVCache(decoder_of("mamba2").config)
    states = cache.states
    assert states is not None
    most = 0
    for num_rows, num_wanted, num_kept in [*[(piece, 1, piece)] * 5, *((n, n, min(n, kept)) for n, kept in rounds)]:
        start = cache.length
        cache.begin(Tree.chain(num_rows), num_wanted)
        cache.advance(num_rows)
        cache.truncate(start + num_kept)
        most = max(most, states.num_bytes)
    assert most <= most_bytes(states.sizes, states.num_layers)


@needs_native
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


@needs_native
@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_more_than_a_slice_and_trees_at_its_end_have_the_bits_of_their_paths(
    decoder_of: DecoderOf, kind: str
) -> None:
    """256 tokens go through the layers together: one text is cut there, and the tree of another would be."""
    decoder, generator = decoder_of(kind, num_threads=2), np.random.default_rng(2)
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
