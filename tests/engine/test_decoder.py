"""Logits against transformers, and what a decoder refuses; tokens and trees: test_row_invariance.py."""

import re
from typing import Any

import numpy as np
import pytest

from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.engine.weights import ModelWeights
from mxconv.errors import ModelError
from mxconv.kernels.matrix import Float32Matrix
from mxconv.text.tokenizer import Tokenizer

TEXTS = (
    "Once upon a time, there was a little girl named Lily. She liked to play in the park with her dog.",
    "Tom and Ben were best friends. One day they found a big red box behind the house.",
    "The sun was hot.",
)


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


def test_a_trained_model_has_the_logits_and_greedy_tokens_of_transformers(
    shared_model: Any, shared_folder: Any
) -> None:
    tokenizer = Tokenizer.from_folder(shared_folder)
    for text in TEXTS:
        ids = tokenizer.encode(text)
        found = shared_model.decoder.forward(ids, KVCache(shared_model.config))
        assert_close(found, shared_model.logits(ids))
    prompt = tokenizer.encode("Once upon a time")
    theirs = list(prompt)
    ours = list(prompt)
    cache = KVCache(shared_model.config)
    next_ids = prompt
    for _ in range(24):
        next_ids = [int(shared_model.decoder.forward(next_ids, cache, last_only=True).argmax())]
        ours += next_ids
        theirs.append(int(shared_model.logits(theirs)[-1].argmax()))
    assert ours == theirs


def test_last_only_gives_the_last_row_of_all_logits(tiny_model: Any) -> None:
    tiny = tiny_model("llama")
    ids = tiny.text(12)
    every = tiny.decoder.forward(ids, KVCache(tiny.config))
    last = tiny.decoder.forward(ids, KVCache(tiny.config), last_only=True)
    assert last.shape == (1, tiny.config.vocab_size)
    assert (last[0] == every[-1]).all()


def test_a_quantized_head_may_differ_from_the_embedding_it_is_tied_to(tiny_model: Any) -> None:
    """The decoder takes lm_head.weight as it is handed out, so a loader may give it another format."""
    tiny = tiny_model("llama, one KV head")
    head = tiny.weights.matrices["lm_head.weight"]

    class DoubledHead:
        shape = head.shape

        def multiply(self, x: np.ndarray) -> np.ndarray:
            return 2 * head.multiply(x)

    matrices = dict(tiny.weights.matrices) | {"lm_head.weight": DoubledHead()}
    decoder = Decoder(tiny.config, ModelWeights(matrices, tiny.weights.vectors), "doubled")
    ids = tiny.text(5)
    cache = KVCache(decoder.config)
    assert (decoder.forward(ids, cache) == 2 * tiny.decoder.forward(ids, KVCache(decoder.config))).all()


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
