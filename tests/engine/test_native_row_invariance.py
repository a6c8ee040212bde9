"""The native targets: the same bits at every width, chunking, number of threads, and after a rollback."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native_models import DRAFTS, TARGETS, convert, dense, values_of, with_format
from row_invariance import WIDTHS, assert_invariant, assert_same_bits, logits_after_rollback, logits_in_steps

from mxconv.codecs.float16 import FP16
from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.engine.matrices import Matrices
from mxconv.engine.rope import RotaryEmbedding
from mxconv.engine.sight import SinkWindow
from mxconv.engine.weights import ModelWeights
from mxconv.kernels.engine import choose_engine, native_names
from mxconv.kernels.matrix import Matrix

NUM_TOKENS = 140  # more than two chunks of attention, and more than two chunks of a prompt
IMPLEMENTATIONS = native_names()
THREADS = (1, 2, 3)
CASES = [
    ("dense", 1, WIDTHS[1:]),
    ("dense", 2, (5, NUM_TOKENS)),
    ("dense", 3, (3, 33)),
    ("bsfp", 1, (2, 8, 64)),
    ("bsfp", 2, (3, 33)),
    ("bsfp", 3, (16, NUM_TOKENS)),
]

pytestmark = pytest.mark.skipif(not IMPLEMENTATIONS, reason="the extension is not built on this machine")


def text(seed: int = 3, length: int = NUM_TOKENS) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, 96, length)]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("float_format", ["BF16", "F16"])
def test_logits_have_the_same_bits_at_every_width_on_any_number_of_threads(
    native: Callable[..., Decoder], architecture: str, float_format: str, implementation: str
) -> None:
    ids = text()
    expected = logits_in_steps(native(architecture, float_format, "dense", implementation, 1), ids, [1])
    assert np.isfinite(expected).all()
    for form, num_threads, widths in CASES:  # BSFP holds the same weights: its logits are those of the 16-bit matrices
        decoder = native(architecture, float_format, form, implementation, num_threads)
        assert_invariant(decoder, ids, expected, widths)


@pytest.mark.parametrize("form", [*TARGETS, *DRAFTS])
@pytest.mark.parametrize("float_format", ["BF16", "F16"])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_logits_have_the_same_bits_however_a_prompt_is_cut_and_whatever_was_rejected(
    native: Callable[..., Decoder], architectures: list[str], float_format: str, form: str, data: st.DataObject
) -> None:
    architecture = data.draw(st.sampled_from(architectures))
    implementation = data.draw(st.sampled_from(IMPLEMENTATIONS))
    decoder = native(architecture, float_format, form, implementation, data.draw(st.sampled_from(THREADS)))
    ids = text(data.draw(st.integers(0, 3)))
    alone = native(architecture, float_format, form, implementation, 1)
    whole = logits_in_steps(alone, ids, [NUM_TOKENS])
    widths = data.draw(st.lists(st.integers(1, 90), min_size=1, max_size=14))
    assert_same_bits(logits_in_steps(decoder, ids, widths), whole, f"cut at {widths}")
    kept = data.draw(st.integers(1, NUM_TOKENS - 1))
    rejected = data.draw(st.lists(st.integers(0, 95), min_size=1, max_size=56))
    first, rest = logits_after_rollback(decoder, ids, kept, rejected)
    assert_same_bits(np.concatenate([first, rest]), whole, f"{len(rejected)} tokens rejected behind {kept}")


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("float_format", ["BF16", "F16"])
def test_a_branch_of_a_tree_gets_the_bits_of_the_same_tokens_in_a_row(
    native: Callable[..., Decoder], architectures: list[str], float_format: str, implementation: str
) -> None:
    """Random trees of 20 tokens behind a prompt of 90, in two calls; every branch compared with its own text."""
    generator = random.Random(4)
    for architecture in architectures:
        decoder = native(architecture, float_format, "dense", implementation, 2)
        assert_branches_are_texts(decoder, generator, architecture)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_so_does_a_branch_of_a_draft_that_sees_sinks_and_a_window(
    native: Callable[..., Decoder], implementation: str
) -> None:
    for architecture in ("llama", "mistral, long window", "qwen3, biases and window"):
        decoder = native(architecture, "BF16", "dense", implementation, 2)
        for sink_window in (SinkWindow(4, 9), SinkWindow(30, 2), SinkWindow(95, 5)):  # the last: sinks in the tree
            variant = decoder.variant(sink_window=sink_window)
            assert_branches_are_texts(variant, random.Random(4), f"{architecture}, {sink_window}")


def assert_branches_are_texts(decoder: Decoder, generator: random.Random, name: str) -> None:
    prompt, tree = text(1, 90), text(2, 20)
    parents = [generator.randrange(-1, node) for node in range(len(tree))]
    found = tree_logits(decoder, prompt, tree, parents, num_first=generator.randrange(1, 20))
    for node in range(len(tree)):
        branch = branch_of(parents, node)
        in_a_row = logits_in_steps(decoder, prompt + [tree[n] for n in branch], [len(prompt), 1])
        assert_same_bits(found[node : node + 1], in_a_row[-1:], f"{name}, branch {branch}")


def branch_of(parents: list[int], node: int) -> list[int]:
    """From the root to the node."""
    return [*(branch_of(parents, parents[node]) if parents[node] >= 0 else []), node]


def tree_logits(decoder: Any, prompt: list[int], tree: list[int], parents: list[int], num_first: int) -> np.ndarray:
    """Logits of every node, the first `num_first` in one call and the others, behind their keys, in another."""
    from mxconv.kernels import _native

    keys_and_values = KVCache(decoder.config, 256)
    decoder.forward(prompt, keys_and_values)
    branches = [branch_of(parents, node) for node in range(len(tree))]
    rotary = RotaryEmbedding(decoder.config.rope, decoder.config.head_dim)
    parts = []
    for nodes in (range(num_first), range(num_first, len(tree))):
        angles = [rotary.rotations([len(prompt) + len(branches[node]) - 1]) for node in nodes]
        cosines, sines = (np.concatenate([angle[i][:, 0] for angle in angles]) for i in (0, 1))
        masks = np.array([sum(1 << n for n in branches[node]) for node in nodes], np.uint64)
        x = decoder.embedding.rows(np.array([tree[node] for node in nodes]))
        logits = np.empty((len(nodes), decoder.config.vocab_size), np.float32)
        pages = _native.Pages("fp32", keys_and_values.pool.slabs.arrays, keys_and_values.numbers)
        tokens = _native.SequenceTokens(pages, keys_and_values.length, len(nodes), len(nodes), masks, len(prompt))
        decoder.handle.forward(x, [(cosines, sines)], [], None, logits, [tokens])
        keys_and_values.advance(len(nodes))
        parts.append(logits)
    return np.concatenate(parts)


class ProductOfTheMoment:
    """A bad kernel: its order of summation follows from the number of rows, as in a BLAS."""

    def __init__(self, inner: Matrix) -> None:
        self.shape = inner.shape
        self.weights = values_of(inner)

    def multiply(self, x: np.ndarray) -> np.ndarray:
        step = -(-x.shape[1] // min(len(x), 8))
        cuts = [slice(start, start + step) for start in range(0, x.shape[1], step)]
        products = (np.cumsum(x[:, None, cut] * self.weights[:, cut], axis=-1)[..., -1] for cut in cuts)
        return sum(products, np.float32(0))


@pytest.mark.parametrize("tensor", [None, "lm_head.weight", "model.layers.1.mlp.up_proj.weight"])
def test_the_check_finds_one_matrix_among_native_ones_that_depends_on_the_width(
    tiny_oracle: Callable[[str], Any], tensor: str | None
) -> None:
    oracle = tiny_oracle("llama")
    fp16 = with_format(oracle.weights, FP16)  # rounding activations to BF16 may hide what differs before it
    weights = convert(fp16, Matrices(choose_engine(num_threads=2)), dense)
    matrices = dict(weights.matrices)
    if tensor is not None:
        matrices[tensor] = ProductOfTheMoment(matrices[tensor])
    decoder = Decoder(oracle.decoder.config, ModelWeights(matrices, weights.vectors), "width-dependent")
    ids = text(length=70)
    alone = logits_in_steps(decoder, ids, [1])
    if tensor is None:
        return assert_invariant(decoder, ids, alone, WIDTHS)
    np.testing.assert_allclose(logits_in_steps(decoder, ids, [5]), alone, atol=1e-3)  # right numbers, wrong bits
    with pytest.raises(AssertionError, match="width 2: logits of position 0 differ"):
        assert_invariant(decoder, ids, alone, WIDTHS)
    return None
