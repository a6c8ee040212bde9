"""The logits of a position depend on the token prefix alone, bit for bit: at every width, however a prompt is cut, on
any number of threads and after a rollback; of NumPy and of every native kernel (design, numerics 2).

Rows of trees and of several sequences in a pass: test_sequence_rows.py.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native_models import DRAFTS, TARGETS, convert, dense, values_of, with_format
from row_invariance import WIDTHS, assert_invariant, assert_same_bits, logits_after_rollback, logits_in_steps

from mxconv.codecs.float16 import FP16
from mxconv.engine.decoder import Decoder
from mxconv.engine.matrices import Matrices
from mxconv.engine.weights import ModelWeights
from mxconv.kernels.engine import choose_engine, native_names
from mxconv.kernels.matrix import Matrix

NUM_TOKENS = 140  # more than two chunks of attention, and more than two chunks of a prompt
IMPLEMENTATIONS = native_names()
ARCHITECTURES = ("mistral, long window", "qwen3, biases and window", "llama, one KV head", "llama, tied")
THREADS = (1, 2, 3)
CASES = [("dense", 1, WIDTHS[1:]), ("dense", 2, (5, NUM_TOKENS)), ("bsfp", 2, (8, 64)), ("bsfp", 3, (16, NUM_TOKENS))]

needs_native = pytest.mark.skipif(not IMPLEMENTATIONS, reason="the extension is not built on this machine")


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


def assert_same_however_cut(
    decoder: Decoder, alone: Decoder, ids: list[int], data: st.DataObject, most_rejected: int = 56
) -> None:
    whole = logits_in_steps(alone, ids, [len(ids)])
    widths = data.draw(st.lists(st.integers(1, 90), min_size=1, max_size=14))
    assert_same_bits(logits_in_steps(decoder, ids, widths), whole, f"cut at {widths}")
    kept = data.draw(st.integers(1, len(ids) - 1))
    rejected = data.draw(st.lists(st.integers(0, 95), min_size=1, max_size=most_rejected))
    first, rest = logits_after_rollback(decoder, ids, kept, rejected)
    assert_same_bits(np.concatenate([first, rest]), whole, f"{len(rejected)} tokens rejected after {kept}")


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
    assert_same_however_cut(decoder, native(*model, 1), text(data.draw(st.integers(0, 3))), data)


@settings(max_examples=3, deadline=None)
@given(data=st.data())
def test_so_they_have_by_numpy(tiny_oracle: Any, data: st.DataObject) -> None:
    oracle = tiny_oracle(data.draw(st.sampled_from(["llama", "mistral, window", "qwen3"])))
    assert_same_however_cut(oracle.decoder, oracle.decoder, oracle.text(80), data)


class WidthDependentMatrix:
    """What a BLAS does, made certain: the order of summation follows from the number of rows."""

    def __init__(self, inner: Matrix) -> None:
        self.shape = inner.shape
        self.weights = values_of(inner)

    def multiply(self, x: np.ndarray) -> np.ndarray:
        step = -(-x.shape[1] // min(len(x), 8))
        cuts = [slice(start, start + step) for start in range(0, x.shape[1], step)]
        products = (np.cumsum(x[:, None, cut] * self.weights[:, cut], axis=-1)[..., -1] for cut in cuts)
        return sum(products, np.float32(0))


@pytest.mark.parametrize(
    ("kind", "tensor"),
    [("numpy", "lm_head.weight"), *((name, "model.layers.1.mlp.up_proj.weight") for name in IMPLEMENTATIONS[:1])],
)
def test_the_check_finds_one_matrix_that_depends_on_the_width(
    tiny_oracle: Callable[[str], Any], kind: str, tensor: str
) -> None:
    oracle = tiny_oracle("llama")
    fp16 = with_format(oracle.weights, FP16)  # rounding activations to BF16 may hide what differs before it
    matrices = Matrices(None if kind == "numpy" else choose_engine(kind, 2))
    weights = convert(fp16, matrices, dense)
    ids = text(length=40)
    sound = Decoder(oracle.decoder.config, weights, "sound")
    assert_invariant(sound, ids, logits_in_steps(sound, ids, [1]), (2, 5))
    special = {**weights.matrices, tensor: WidthDependentMatrix(weights.matrices[tensor])}
    decoder = Decoder(oracle.decoder.config, ModelWeights(special, weights.vectors), "width-dependent")
    alone = logits_in_steps(decoder, ids, [1])
    np.testing.assert_allclose(logits_in_steps(decoder, ids, [5]), alone, atol=1e-3)  # right numbers, wrong bits
    with pytest.raises(AssertionError, match="width 2: logits of position 0 differ"):
        assert_invariant(decoder, ids, alone, WIDTHS[1:])
