"""The logits of a position depend on the token prefix alone, bit for bit, by NumPy and by every native kernel: at every
width, however a prompt is cut, on any number of threads, after a rollback, in trees, and beside other sequences.
"""

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native_models import DRAFTS, TARGETS, convert, dense, with_format
from row_invariance import WIDTHS, assert_invariant, assert_same_bits, logits_after_rollback, logits_in_steps

from mxconv.arch.description import Attention
from mxconv.codecs.float16 import BF16
from mxconv.engine.attention_window import RetrievedPages, SinkWindow
from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.engine.matrices import Matrices
from mxconv.engine.sequence_rows import SequenceRows, States
from mxconv.engine.tree import Tree
from mxconv.engine.weights import ModelWeights
from mxconv.errors import ModelError
from mxconv.kernels.engine import choose_engine, native_names

IMPLEMENTATIONS = native_names()
needs_native = pytest.mark.skipif(not IMPLEMENTATIONS, reason="the extension is not built on this machine")

# ---- one sequence ----

NUM_TOKENS = 140  # more than two chunks of attention, and more than two chunks of a prompt
ARCHITECTURES = ("mistral, long window", "qwen3, biases and window", "llama, one KV head")
THREADS = (1, 2, 3)
CASES = [("dense", 1, WIDTHS[1:]), ("dense", 2, (5, NUM_TOKENS)), ("bsfp", 2, (8, 64)), ("bsfp", 3, (16, NUM_TOKENS))]


def text(seed: int = 3, length: int = NUM_TOKENS) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, 96, length)]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_logits_have_the_same_bits_at_every_width_on_any_number_of_threads(
    native: Callable[..., Decoder], implementation: str
) -> None:
    """Architectures and formats take turns from kernel to kernel."""
    ids, turn = text(), IMPLEMENTATIONS.index(implementation)
    architecture, float_format = ARCHITECTURES[turn % len(ARCHITECTURES)], ("BF16", "F16")[turn % 2]
    expected = logits_in_steps(native(architecture, float_format, "dense", implementation, 1), ids, [1])
    assert np.isfinite(expected).all()
    for form, num_threads, widths in CASES:  # BSFP holds the same weights: its logits are those of the 16-bit matrices
        decoder = native(architecture, float_format, form, implementation, num_threads)
        assert_invariant(decoder, ids, expected, widths)


@needs_native
@pytest.mark.parametrize("form", [*TARGETS, *DRAFTS])
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_logits_have_the_same_bits_however_a_prompt_is_cut_and_whatever_was_rejected(
    native: Callable[..., Decoder], form: str, data: st.DataObject
) -> None:
    model = (
        data.draw(st.sampled_from(ARCHITECTURES)),
        data.draw(st.sampled_from(["BF16", "F16"])),
        form,
        data.draw(st.sampled_from(IMPLEMENTATIONS)),
    )
    decoder = native(*model, data.draw(st.sampled_from(THREADS)))
    ids = text(data.draw(st.integers(0, 3)))
    whole = logits_in_steps(native(*model, 1), ids, [len(ids)])
    widths = data.draw(st.lists(st.integers(1, 90), min_size=1, max_size=14))
    assert_same_bits(logits_in_steps(decoder, ids, widths), whole, f"cut at {widths}")
    kept = data.draw(st.integers(1, len(ids) - 1))
    rejected = data.draw(st.lists(st.integers(0, 95), min_size=1, max_size=56))
    first, rest = logits_after_rollback(decoder, ids, kept, rejected)
    assert_same_bits(np.concatenate([first, rest]), whole, f"{len(rejected)} tokens rejected after {kept}")


# ---- trees and several sequences ----

MODELS = [  # architecture, format, form, threads: few, since each has to be converted for each kernel
    ("llama", "BF16", "dense", 2),
    ("mistral, long window", "F16", "dense", 3),
    ("qwen3, biases and window", "BF16", "bsfp", 2),
    ("qwen2, window", "F16", "bsfp", 1),
    ("llama, one KV head", "BF16", "mxfp4", 3),
    ("llama, biases", "F16", "bsfp-draft", 2),
]
# how far above itself a row hangs, or -1: of ones a chain, of large numbers something wide
TREES = (
    st.integers(1, 16)
    .flatmap(lambda width: st.lists(st.integers(1, width), min_size=1, max_size=64))
    .map(lambda lags: Tree([max(-1, row - lag) for row, lag in enumerate(lags)]))
)


@dataclass
class Twice:
    """A sequence in batches, and the same text by a decoder that evaluates nothing else, in chains alone."""

    decoder: Decoder
    alone: Decoder
    text: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cache = KVCache(self.decoder.config, capacity=4)
        self.alone_cache = KVCache(self.decoder.config, capacity=4)

    def check(self, tokens: Sequence[int], tree: Tree, logits: dict[int, np.ndarray]) -> None:
        """Logits of rows against those of every leaf's path."""
        for leaf in set(range(len(tokens))) - set(tree.parents):
            path = tree.path(leaf)
            expected = self.alone.forward([tokens[row] for row in path], self.alone_cache)
            self.alone_cache.truncate(len(self.text))
            for row, own in zip(path, expected, strict=True):
                if row in logits:
                    assert_same_bits(logits[row][None], own[None], f"row {row} of {tree} after {len(self.text)}")

    def keep(self, tokens: Sequence[int], path: list[int]) -> None:
        """Go on after a row."""
        self.cache.keep(len(self.text), path)
        kept = [tokens[row] for row in path]
        self.alone.forward(kept, self.alone_cache)
        self.text += kept


def grow(decoder: Decoder, sequences: list[Twice], texts: list[list[int]], trees: list[Tree], cuts: list[int]) -> None:
    """Evaluate a tree below each sequence in two batches: the rows before the cuts, and then the others."""
    logits: list[dict[int, np.ndarray]] = [{} for _ in sequences]
    for bounds in ([(0, cut) for cut in cuts], [(cut, len(text)) for cut, text in zip(cuts, texts, strict=True)]):
        taking_part = [index for index, (first, last) in enumerate(bounds) if first < last]
        batch = []
        for index in taking_part:
            first, last = bounds[index]
            part = Tree(trees[index].parents[:last], num_cached=first)
            num_logits = None if index else min(3, last - first)
            batch.append(SequenceRows(texts[index][first:last], sequences[index].cache, part, num_logits))
        for index, found in zip(taking_part, decoder.forward_batch(batch) if batch else [], strict=True):
            assert found.shape[1] == decoder.config.vocab_size
            logits[index] |= zip(range(bounds[index][1] - len(found), bounds[index][1]), found, strict=True)
    for sequence, text, tree, found in zip(sequences, texts, trees, logits, strict=True):
        assert len(found) == len(text) or sequence is sequences[0]
        sequence.check(text, tree, found)


def live(decoder: Decoder, alone: Decoder, data: st.DataObject, num_passes: int, longest: int) -> None:
    """Some passes, each over some of three sequences: prompts in chains of up to `longest`, then trees as they come."""
    everybody = [Twice(decoder, alone) for _ in range(3)]
    for _ in range(num_passes):
        sequences = data.draw(st.lists(st.sampled_from(everybody), min_size=1, unique_by=id), "who")
        chains = st.integers(1, longest).map(Tree.chain)
        trees = [data.draw(TREES if sequence.text else chains, "tree") for sequence in sequences]
        tokens = np.random.default_rng(data.draw(st.integers(0, 2**16), "seed of tokens"))
        texts = [[int(token) for token in tokens.integers(0, 96, tree.num_rows)] for tree in trees]
        cuts = [data.draw(st.just(0) | st.integers(0, tree.num_rows - 1), "cut") for tree in trees]
        grow(decoder, sequences, texts, trees, cuts)
        for sequence, text, tree in zip(sequences, texts, trees, strict=True):
            sequence.keep(text, tree.path(data.draw(st.integers(0, tree.num_rows - 1), "kept")))


def sinks(decoder: Decoder, left_out: Iterable[int] = ()) -> st.SearchStrategy[SinkWindow | None]:
    fixed = st.none() | st.builds(SinkWindow, st.integers(0, 90), st.integers(1, 70))
    mixers = [layer.mixer for index, layer in enumerate(decoder.config.layers) if index not in left_out]
    if not any(isinstance(mixer, Attention) and mixer.window is None for mixer in mixers):  # no pages to retrieve
        return fixed
    return fixed | st.builds(RetrievedPages, st.integers(0, 70), st.integers(64, 90), st.integers(1, 2))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_rows_of_batches_are_their_paths_alone_by_every_native_kernel(
    native: Callable[..., Decoder], implementation: str, data: st.DataObject
) -> None:
    """Sequences come and go; trees, chunks of prompts and single rows share passes of one and of several slices."""
    *model, num_threads = data.draw(st.sampled_from(MODELS))
    decoder, alone = (native(*model, implementation, threads) for threads in (num_threads, 1))
    left = data.draw(st.sets(st.integers(0, 2), max_size=2))
    pattern = data.draw(sinks(decoder, left))
    decoder, alone = (
        one.variant(pattern, layers=[layer for layer in one.layers if layer.index not in left])
        for one in (decoder, alone)
    )
    live(decoder, alone, data, num_passes=4, longest=140)


@settings(max_examples=4, deadline=None)
@given(data=st.data())
def test_rows_of_batches_are_their_paths_alone_by_numpy(tiny_model: Callable[[str], Any], data: st.DataObject) -> None:
    architecture = data.draw(st.sampled_from([model[0] for model in MODELS]))
    target = tiny_model(architecture).decoder
    decoder = target.variant(pattern=data.draw(sinks(target)))
    live(decoder, decoder, data, num_passes=2, longest=20)


def test_rows_without_logits_fill_their_cache_all_the_same(tiny_model: Callable[[str], Any]) -> None:
    decoder = tiny_model("llama").decoder
    caches = [KVCache(decoder.config) for _ in range(2)]
    none, last = decoder.forward_batch(
        [SequenceRows([1, 2, 3], caches[0], num_logits=0), SequenceRows([4, 5], caches[1], num_logits=1)]
    )
    assert (none.shape, last.shape) == ((0, 96), (1, 96))
    assert_same_bits(last, logits_in_steps(decoder, [4, 5], [1])[-1:], "the last")
    assert_same_bits(decoder.forward([6], caches[0]), logits_in_steps(decoder, [1, 2, 3, 6], [1])[-1:], "after them")
    assert decoder.forward_batch([SequenceRows([7], caches[0], num_logits=0)])[0].shape == (0, 96)
    assert caches[0].length == 5


@needs_native
@pytest.mark.parametrize("number", range(max(len(IMPLEMENTATIONS), 2)))
def test_what_is_not_finite_stays_in_its_sequence_and_after_its_position(
    tiny_model: Callable[[str], Any], number: int
) -> None:
    """In the embedding of a token, by every kernel in turn: positions that see it lose their numbers, and no others."""
    tiny, ids = tiny_model("mistral, window"), tiny_model("mistral, window").text(40)
    matrices = Matrices(choose_engine(IMPLEMENTATIONS[number % len(IMPLEMENTATIONS)], 2))
    ids = [token for token in ids if token != 7]
    broken = [*ids[:20], 7, *ids[21:]]
    name, texts = "model.embed_tokens.weight", [ids[:3], broken, [7, 7, 7], ids[:5]]
    for form, value in zip([*TARGETS, *DRAFTS], (np.nan, np.inf, -np.inf, 3e38), strict=True):
        weights = convert(with_format(tiny.weights, BF16), matrices, (TARGETS | DRAFTS)[form])
        patterns = tiny.weights.matrices[name].patterns.copy()
        patterns[7, 11] = BF16.encode(np.array([value], np.float32))[0]
        special = ModelWeights({**weights.matrices, name: dense(matrices, patterns, BF16)}, weights.vectors)
        decoder = matrices.decoder(tiny.config, special, "test")
        for variant in (decoder, decoder.variant(SinkWindow(0, 1), layers=decoder.layers[:1])):
            found = variant.forward_batch([SequenceRows(text, KVCache(variant.config)) for text in texts])
            for index, count in ((0, 3), (1, 20), (3, 5)):
                expected = logits_in_steps(variant, texts[index][:count], [1])
                assert np.isfinite(expected).all()
                assert_same_bits(found[index][:count], expected, f"{form}, sequence {index}")
            if not np.isfinite(value):
                assert np.isnan(found[2]).all() and np.isnan(found[1][20]).all()
            assert variant is not decoder or np.isfinite(value) or np.isnan(found[1][20:25]).all()  # the window


Batch = Callable[[Sequence[KVCache]], list[SequenceRows]]
STATES = States([1])
REFUSED: dict[str, tuple[str, Batch]] = {
    "none": (r"test: 0 sequences to evaluate; at least one is required", lambda caches: []),
    "one cache": (
        "test: two sequences of a pass with the same KV cache; one each is required. Give every sequence its own.",
        lambda caches: [SequenceRows([1], caches[0]), SequenceRows([2], caches[1]), SequenceRows([3], caches[0])],
    ),
    "one States": (
        "test: two sequences of a pass with the same States; one each is required. Give every sequence its own.",
        lambda caches: [SequenceRows([1], cache, states=STATES) for cache in caches],
    ),
    "no tokens": (
        "test, sequence 1: 0 tokens to evaluate; at least one is required. Give a prompt.",
        lambda caches: [SequenceRows([1], caches[0]), SequenceRows([], caches[1])],
    ),
    "a negative token": (
        r"test: token id -1; ids from 0 to 95 are required\. Use the tokenizer that belongs to the model\.",
        lambda caches: [SequenceRows([-1], caches[0])],
    ),
    "another token": (
        "test, sequence 0: token id 96; ids from 0 to 95 are required.",
        lambda caches: [SequenceRows([1, 96], caches[0]), SequenceRows([1], caches[1])],
    ),
    "another tree": (
        "test, sequence 1: a tree of 2 rows; 1, a token each, are required.",
        lambda caches: [SequenceRows([1], caches[0]), SequenceRows([1], caches[1], Tree([-1, -1]))],
    ),
    "a tree of rows that the cache does not hold": (
        "test, sequence 1: a tree of which 4 rows are evaluated; the 3 that the cache holds at most are required.",
        lambda caches: [SequenceRows([1], caches[0]), SequenceRows([1], caches[1], Tree([-1] * 5, num_cached=4))],
    ),
    "a deep tree": (
        r"test, sequence 1: 257 positions; the model has 256 \(max_position_embeddings\)",
        lambda caches: [SequenceRows([1], caches[0]), SequenceRows([1] * 254, caches[1])],
    ),
    "more logits": (
        "test, sequence 1: logits of the last 3 rows; 0 to 2, all that there are, are required.",
        lambda caches: [SequenceRows([1], caches[0]), SequenceRows([1, 2], caches[1], num_logits=3)],
    ),
    "fewer logits than none": (
        "test: logits of the last -1 rows; 0 to 2",
        lambda caches: [SequenceRows([1, 2], caches[1], num_logits=-1)],
    ),
    "a state that there is not": (
        r"test, sequence 1: the state of layer 4; 0 \(the embedding\) to 3 \(what the last layer gives\) are required",
        lambda caches: [SequenceRows([1], caches[0]), SequenceRows([1], caches[1], states=States([0, 4]))],
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_batch_that_is_refused_leaves_every_cache_alone(tiny_model: Callable[[str], Any], case: str) -> None:
    decoder = copy(tiny_model("llama").decoder)
    decoder.name = "test"
    caches = [KVCache(decoder.config) for _ in range(2)]
    for cache in caches:
        decoder.forward([1, 2, 3], cache)
    before = [[array.copy() for array in cache.arrays] for cache in caches]
    message, batch = REFUSED[case]
    with pytest.raises(ModelError, match=f"^{message}"):
        decoder.forward_batch(batch(caches))
    for cache, arrays in zip(caches, before, strict=True):
        assert cache.length == 3
        assert all((now == then).all() for now, then in zip(cache.arrays, arrays, strict=True))


@pytest.mark.parametrize("native", [False, True], ids=["numpy", "native"])
def test_positions_that_a_cache_leaves_out_count(tiny_model: Callable[[str], Any], native: bool) -> None:
    """Attention knows distances alone: a text that is further back gives the same logits; after a gap it does not."""
    tiny = tiny_model("llama")
    matrices = Matrices(choose_engine(num_threads=1) if native else None)
    decoder = matrices.decoder(tiny.config, convert(tiny.weights, matrices, dense), "test")
    text = [5, 17, 80, 3, 41]

    def logits(at_first: int, later: int) -> np.ndarray:
        cache = KVCache(decoder.config)
        cache.num_left_out = at_first
        decoder.forward(text[:2], cache)
        cache.num_left_out = later
        decoder.forward([9], cache, tree=Tree([-1]))
        return decoder.forward(text[2:4], cache, tree=Tree([-1, 0, 0], num_cached=1))

    plain, back, gap = logits(0, 0), logits(100, 100), logits(0, 100)
    largest = float(np.abs(plain).max())
    np.testing.assert_allclose(back, plain, atol=2e-3 * largest)
    assert np.abs(gap - plain).max() > 2e-2 * largest
    for left_out, is_refused in ((254, False), (255, True)):
        cache = KVCache(decoder.config)
        cache.num_left_out = left_out
        if is_refused:
            with pytest.raises(ModelError, match=r"257 positions; the model has 256 \(max_position_embeddings\)"):
                decoder.forward([1, 2], cache)
        else:
            decoder.forward([1, 2], cache)


# ---- trees ----


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


def test_a_tree_may_be_wider_than_the_positions_that_are_left(tiny_model: Callable[[str], Any]) -> None:
    decoder = tiny_model("llama").decoder
    cache = KVCache(decoder.config)
    decoder.forward([1] * (decoder.config.max_position_embeddings - 1), cache)
    assert decoder.forward([1, 2, 3], cache, tree=Tree([-1, -1, -1])).shape[0] == 3
    with pytest.raises(ModelError, match="257 positions; the model has 256"):
        cache.truncate(decoder.config.max_position_embeddings - 1)
        decoder.forward([1, 2, 3], cache, tree=Tree([-1, -1, 1]))


def test_a_cache_keeps_the_rows_that_it_is_told_to_and_no_others(tiny_model: Callable[[str], Any]) -> None:
    cache = KVCache(tiny_model("llama").decoder.config)
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
