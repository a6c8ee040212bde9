"""Logits, attention and rotations against transformers, and what a decoder refuses; trees: test_row_invariance.py."""

import re
from typing import Any

import numpy as np
import pytest

from mxconv.arch.fields import Fields
from mxconv.arch.rope_parameters import RopeParameters
from mxconv.engine.attention import attend, attend_together
from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.engine.rope import RotaryEmbedding, rotate
from mxconv.engine.weights import ModelWeights
from mxconv.errors import ModelError
from mxconv.kernels.matrix import Float32Matrix


def assert_close(ours: np.ndarray, theirs: np.ndarray) -> None:
    assert ours.dtype == np.float32
    assert np.abs(ours - theirs).max() <= 1e-3
    assert (ours.argmax(-1) == theirs.argmax(-1)).all()


@pytest.mark.parametrize("name", ["llama, one KV head", "mistral, long window", "qwen3, biases and window"])
def test_logits_agree_with_transformers(tiny_model: Any, name: str) -> None:
    """Of what no family of the table has."""
    tiny = tiny_model(name)
    ids = tiny.text(100)
    assert_close(tiny.decoder.forward(ids, KVCache(tiny.config)), tiny.logits(ids))


def test_last_only_gives_the_last_row_of_all_logits(tiny_model: Any) -> None:
    tiny = tiny_model("llama")
    ids = tiny.text(12)
    every = tiny.decoder.forward(ids, KVCache(tiny.config))
    last = tiny.decoder.forward(ids, KVCache(tiny.config), last_only=True)
    assert last.shape == (1, tiny.config.vocab_size)
    assert (last[0] == every[-1]).all()


def test_weights_that_overflow_flow_through_without_a_warning(tiny_model: Any) -> None:
    tiny = tiny_model("llama")
    vectors = dict(tiny.weights.vectors) | {"model.layers.0.input_layernorm.weight": np.full(48, 3e38, np.float32)}
    decoder = Decoder(tiny.config, ModelWeights(tiny.weights.matrices, vectors), "overflowing")
    assert np.isnan(decoder.forward([1, 2, 3], KVCache(decoder.config))).any()


def test_a_cache_of_another_model_is_refused(tiny_model: Any) -> None:
    cache = KVCache(tiny_model("qwen3, biases and window").config)
    message = (
        "^tiny: a KV cache of 3 layers, 2 heads and head size 16; 3, 2 and 12 are required. "
        "Give this model a cache of its own.$"
    )
    with pytest.raises(ModelError, match=message):
        tiny_model("llama").decoder.forward([1], cache)


@pytest.mark.parametrize("length", [None, 47])
def test_every_tensor_is_required_in_its_shape(tiny_model: Any, length: int | None) -> None:
    tiny = tiny_model("qwen3, biases and window")
    for name in (*tiny.weights.matrices, *tiny.weights.vectors):
        matrices, vectors = dict(tiny.weights.matrices), dict(tiny.weights.vectors)
        kept: dict[str, Any] = matrices if name in matrices else vectors
        found = kept.pop(name)
        message = "is missing; its shape .* is required"
        if length is not None:
            kept[name] = Float32Matrix(np.ones((length, 48), np.float32)) if found.shape[1:] else np.ones(length)
            message = rf"has shape \({length},.*; config.json requires \("
        remedy = "Convert the checkpoint again, or take the config.json that belongs to it"
        with pytest.raises(ModelError, match=rf"^tiny: tensor {re.escape(name)} {message}.*\. {remedy}\.$"):
            Decoder(tiny.config, ModelWeights(matrices, vectors), "tiny")


# ---- attention and rotations ----

rng = np.random.default_rng(3)


def exact_attention(query: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The definition in float64, head by head."""
    group = len(query) // len(keys)
    rows = []
    for head, row in enumerate(query.astype(np.float64)):
        scores = keys[head // group].astype(np.float64) @ row / np.sqrt(len(row))
        shares = np.exp(scores - scores.max())
        rows.append(shares @ values[head // group] / shares.sum())
    return np.array(rows)


@pytest.mark.parametrize("num_positions", [1, 2, 63, 64, 65, 128, 129, 200])
def test_attention_is_the_softmax_weighted_mean(num_positions: int) -> None:
    for num_heads, num_key_value_heads in ((4, 4), (6, 2), (5, 1)):
        query = rng.standard_normal((num_heads, 10), np.float32) * 3
        keys, values = rng.standard_normal((2, num_key_value_heads, num_positions, 10), np.float32)
        np.testing.assert_allclose(attend(query, keys, values), exact_attention(query, keys, values), atol=2e-6)


def test_large_scores_do_not_overflow() -> None:
    query = np.full((1, 4), 1e3, np.float32)
    keys = np.array([[[1e3] * 4, [-1e3] * 4]], np.float32)
    values = np.array([[[1.0] * 4, [2.0] * 4]], np.float32)
    assert (attend(query, keys, values) == 1).all()


@pytest.mark.parametrize(
    "options", [{}, {"scale": 0.3, "logit_cap": 2.0}, {"sinks": np.array([1, -2, 0, 3], np.float32)}]
)
def test_rows_together_are_what_each_is_alone(options: dict[str, Any]) -> None:
    queries = rng.standard_normal((70, 4, 8)).astype(np.float32)
    keys, values = (rng.standard_normal((2, 70, size)).astype(np.float32) for size in (8, 6))
    seen = np.tril(np.ones((70, 70), np.bool_)) & ~np.tril(np.ones((70, 70), np.bool_), -9)
    alone = [attend(query, keys[:, row], values[:, row], **options) for query, row in zip(queries, seen, strict=True)]
    assert np.allclose(attend_together(queries, keys, values, seen, **options), alone, atol=1e-6)


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
STYLES: dict[str, dict[str, Any]] = {
    "plain": {"rope_theta": 10000.0},
    "plain, new style": {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}},
    "linear": {"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 4.0}},
    "linear, new style": {"rope_parameters": {"rope_theta": 1e4, "rope_type": "linear", "factor": 2.5}},
    "llama3": {"rope_theta": 5e5, "rope_scaling": LLAMA3 | {"original_max_position_embeddings": 8192}},
    "llama3 without the original context": {"rope_theta": 5e5, "rope_scaling": LLAMA3},
    "null scaling": {"rope_theta": 1e4, "rope_scaling": None},
    "scaling wins over parameters": {
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
        "rope_parameters": {"rope_type": "linear", "factor": 8.0},
    },
}


@pytest.mark.parametrize("style", STYLES)
def test_rotations_agree_with_transformers(style: str) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    sizes = {"hidden_size": 256, "num_attention_heads": 2, "max_position_embeddings": 16384}
    theirs = LlamaRotaryEmbedding(LlamaConfig(**sizes, **STYLES[style]))
    ours = RotaryEmbedding(RopeParameters.from_fields(Fields(STYLES[style], "config.json"), 16384), 128)
    np.testing.assert_allclose(ours.frequencies, theirs.inv_freq.numpy(), rtol=1e-6)

    positions = torch.arange(100, 140)[None]
    x = torch.randn(1, 2, 40, 128, generator=torch.Generator().manual_seed(0))
    expected, _ = apply_rotary_pos_emb(x, x, *theirs(x, positions))
    rotated = rotate(x[0].transpose(0, 1).numpy(), *ours.rotations(range(100, 140)))
    np.testing.assert_allclose(rotated, expected[0].transpose(0, 1).numpy(), atol=2e-4)


def test_a_rotation_depends_on_its_position_alone() -> None:
    rotary = RotaryEmbedding(RopeParameters(10000.0), 64)
    together = rotary.rotations(range(5, 65))
    for position in range(5, 65):
        alone = rotary.rotations([position])
        assert all((one[0] == every[position - 5]).all() for one, every in zip(alone, together, strict=True))
