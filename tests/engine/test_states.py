"""Hidden states against transformers, the two decoders against each other, and rows against their paths alone."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native_models import native_copy, with_format
from row_invariance import assert_same_bits

from mxconv.codecs.float16 import FP16
from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.engine.matrices import Matrices
from mxconv.engine.sequence_rows import SequenceRows, States
from mxconv.engine.tree import Tree
from mxconv.errors import ModelError
from mxconv.kernels.engine import choose_engine, native_names

MODELS = [  # architecture, format, form, threads
    ("llama", "BF16", "dense", 2),
    ("mistral, long window", "F16", "dense", 3),
    ("qwen3, biases and window", "BF16", "bsfp", 2),
    ("llama, one KV head", "BF16", "mxfp4", 3),
]
ALL = (0, 1, 2, 3)  # of the tiny models, three layers


def states_of(decoder: Decoder, ids: list[int], cuts: tuple[int, ...] = ()) -> np.ndarray:
    """All five states of a text that goes in by pieces, (5, num_tokens, hidden_size)."""
    cache, parts = KVCache(decoder.config, 4), []
    for start, stop in pairwise([0, *cuts, len(ids)]):
        states = States(ALL, normed_last=True)
        decoder.forward(ids[start:stop], cache, last_only=True, states=states)
        parts.append(states.values)
    return np.concatenate(parts, axis=1)


def assert_same_states(found: np.ndarray, expected: np.ndarray, how: str) -> None:
    assert found.shape == expected.shape
    for index, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        assert_same_bits(ours, theirs, f"{how}, state {index}")


def states_by_transformers(tiny: Any, ids: list[int]) -> np.ndarray:
    """`hidden_states`, whose last is normed, and what the last layer gives before that."""
    torch = pytest.importorskip("torch")
    given: list[Any] = []

    def note(layer: Any, inputs: Any, output: Any) -> None:
        given.append(output[0] if isinstance(output, tuple) else output)

    hook = tiny.torch_model.model.layers[-1].register_forward_hook(note)
    with torch.no_grad():
        hidden = tiny.torch_model(torch.tensor([ids]), output_hidden_states=True).hidden_states
    hook.remove()
    return np.stack([state.reshape(len(ids), -1).numpy() for state in (*hidden[:-1], given[0], hidden[-1])])


@pytest.mark.parametrize("name", ["llama, one KV head", "qwen3, biases and window"])
def test_states_are_those_of_transformers_and_native_ones_those_of_numpy(
    tiny_model: Callable[[str], Any], name: str
) -> None:
    tiny = tiny_model(name)
    ids = tiny.text(90)
    found, expected = states_of(tiny.decoder, ids), states_by_transformers(tiny, ids)
    assert found.dtype == np.float32
    assert_near(found, expected)
    for implementation in native_names()[:1]:
        weights = with_format(tiny.weights, FP16)
        native = native_copy(tiny.config, weights, Matrices(choose_engine(implementation, 2)))
        assert_near(states_of(native, ids), states_of(Decoder(tiny.config, weights, "numpy"), ids))


def assert_near(found: np.ndarray, expected: np.ndarray) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-4 * float(np.abs(theirs).max()))


@pytest.mark.parametrize("implementation", native_names())
@settings(max_examples=4, deadline=None)
@given(data=st.data())
def test_states_have_the_same_bits_however_a_text_is_cut_and_whatever_is_beside_it(
    native: Callable[..., Decoder], implementation: str, data: st.DataObject
) -> None:
    """A text in random pieces, and in a batch with a tree; rows of the tree against their paths."""
    *model, num_threads = data.draw(st.sampled_from(MODELS))
    decoder, alone = (native(*model, implementation, threads) for threads in (num_threads, 1))
    ids = [int(token) for token in np.random.default_rng(data.draw(st.integers(0, 9))).integers(0, 96, 150)]
    whole = states_of(alone, ids)
    cuts = tuple(sorted(data.draw(st.sets(st.integers(1, 149), max_size=6))))
    assert_same_states(states_of(decoder, ids, cuts), whole, f"cut at {cuts}")

    tree = Tree([data.draw(st.integers(max(-1, row - 5), row - 1)) for row in range(12)])
    prompt, tokens, cache = ids[:70], ids[70:82], KVCache(decoder.config)
    decoder.forward(prompt, cache)
    beside, of_tree, unread = States(ALL, normed_last=True), States([2], normed_last=True), KVCache(decoder.config)
    decoder.forward_batch(
        [
            SequenceRows(ids, KVCache(decoder.config), num_logits=3, states=beside),
            SequenceRows([3, 1, 4], unread),
            SequenceRows(tokens, cache, tree, num_logits=0, states=of_tree),
        ]
    )
    assert_same_states(beside.values, whole, "in a batch")
    for row in range(len(tokens)):
        path = states_of(alone, [*prompt, *(tokens[above] for above in tree.path(row))])
        assert_same_states(of_tree.values[:, row : row + 1], path[[2, 4], -1:], f"row {row}")


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([], "states: none is named; a layer or the normed state is required"),
        ([-1], r"states of layers \[-1\]; ascending numbers from 0 on are required"),
        ([1, 1], r"states of layers \[1, 1\]; ascending"),
    ],
)
def test_states_that_nobody_can_read_are_errors(layers: list[int], message: str) -> None:
    with pytest.raises(ModelError, match=f"^{message}"):
        States(layers)
