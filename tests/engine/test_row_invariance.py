"""The logits of a position depend on the token prefix alone, bit for bit (design, numerics 2)."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from row_invariance import WIDTHS, assert_invariant, assert_same_bits, logits_after_rollback, logits_in_steps

from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.engine.weights import ModelWeights
from mxconv.kernels.matrix import Matrix

NUM_TOKENS = 130  # beyond two chunks of attention


def test_logits_have_the_same_bits_at_any_width(oracle: Any) -> None:
    ids = oracle.text(NUM_TOKENS)
    whole = logits_in_steps(oracle.decoder, ids, [NUM_TOKENS])
    for widths in ([1, 2, 3, 5, 8], [16], [33], [64], [NUM_TOKENS - 20, 1]):
        assert_same_bits(logits_in_steps(oracle.decoder, ids, widths), whole, f"cut at {widths}")


def test_logits_of_trained_models_have_the_same_bits_at_any_width(shared_oracle: Any) -> None:
    ids = shared_oracle.text(70)
    alone = logits_in_steps(shared_oracle.decoder, ids, [1])
    assert_invariant(shared_oracle.decoder, ids, alone, WIDTHS[1:])


@pytest.mark.parametrize("architecture", ["llama", "mistral, window", "qwen3"])
@settings(max_examples=12, deadline=None)
@given(widths=st.lists(st.integers(1, 40), min_size=1, max_size=12))
def test_logits_have_the_same_bits_however_a_prompt_is_cut(
    tiny_oracle: Any, architecture: str, widths: list[int]
) -> None:
    oracle = tiny_oracle(architecture)
    ids = oracle.text(80)
    whole = logits_in_steps(oracle.decoder, ids, [80])
    assert_same_bits(logits_in_steps(oracle.decoder, ids, widths), whole, f"cut at {widths}")


@settings(max_examples=12, deadline=None)
@given(
    rejected=st.lists(st.integers(0, 95), min_size=1, max_size=70),
    kept=st.integers(1, 40),
)
def test_logits_have_the_same_bits_after_rejected_tokens_are_rolled_back(
    tiny_oracle: Any, rejected: list[int], kept: int
) -> None:
    oracle = tiny_oracle("mistral, window")
    ids = oracle.text(60)
    whole = logits_in_steps(oracle.decoder, ids, [60])
    first, rest = logits_after_rollback(oracle.decoder, ids, kept, rejected)
    assert_same_bits(np.concatenate([first, rest]), whole, f"{len(rejected)} tokens rejected behind {kept}")


def test_a_draft_that_shares_the_cache_leaves_no_trace_in_the_targets_logits(tiny_oracle: Any) -> None:
    target, draft = tiny_oracle("llama"), tiny_oracle("llama, linear scaling")
    ids = target.text(60)
    whole = logits_in_steps(target.decoder, ids, [60])
    cache = KVCache(target.decoder.config)
    logits = [target.decoder.forward(ids[:20], cache)]
    for start in range(20, 60, 4):
        for token in ids[start : start + 4]:
            draft.decoder.forward([token], cache)
        cache.truncate(start)
        logits.append(target.decoder.forward(ids[start : start + 4], cache))
    assert (np.concatenate(logits) == whole).all()


@dataclass(frozen=True)
class WidthDependentMatrix:
    """What a BLAS does, made certain: the order of summation follows from the number of rows."""

    inner: Matrix

    @property
    def shape(self) -> tuple[int, int]:
        return self.inner.shape

    def multiply(self, x: np.ndarray) -> np.ndarray:
        weights = self.inner.rows(np.arange(self.shape[0]))
        pieces = min(len(x), 8)
        step = -(-x.shape[1] // pieces)
        cuts = [slice(start, start + step) for start in range(0, x.shape[1], step)]
        return sum((np.cumsum(x[:, None, cut] * weights[:, cut], axis=-1)[..., -1] for cut in cuts), np.float32(0))


@pytest.mark.parametrize("tensor", ["lm_head.weight", "model.layers.0.mlp.down_proj.weight"])
def test_one_matrix_that_adds_in_an_order_of_the_batchs_width_is_found_out(tiny_oracle: Any, tensor: str) -> None:
    oracle = tiny_oracle("llama")
    matrices = dict(oracle.weights.matrices)
    matrices[tensor] = WidthDependentMatrix(matrices[tensor])
    decoder = Decoder(oracle.decoder.config, ModelWeights(matrices, oracle.weights.vectors), "width-dependent")
    ids = oracle.text(40)
    alone, together = logits_in_steps(decoder, ids, [1]), logits_in_steps(decoder, ids, [5])
    with pytest.raises(AssertionError, match="width 2: logits of position"):
        assert_invariant(decoder, ids, alone, WIDTHS[1:])
    np.testing.assert_allclose(alone, together, atol=1e-3)  # right numbers, wrong bits
