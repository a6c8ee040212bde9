"""Logits against transformers, and what a decoder refuses; tokens and trees: test_sequence_rows.py."""

import re
from typing import Any

import numpy as np
import pytest

from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.engine.weights import ModelWeights
from mxconv.errors import ModelError
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


def test_logits_agree_with_transformers(oracle: Any) -> None:
    ids = oracle.text(100)
    assert_close(oracle.decoder.forward(ids, KVCache(oracle.decoder.config)), oracle.logits(ids))


def test_a_trained_model_has_the_logits_and_greedy_tokens_of_transformers(
    shared_oracle: Any, shared_folder: Any
) -> None:
    tokenizer = Tokenizer.from_folder(shared_folder)
    for text in TEXTS:
        ids = tokenizer.encode(text)
        found = shared_oracle.decoder.forward(ids, KVCache(shared_oracle.decoder.config))
        assert_close(found, shared_oracle.logits(ids))
    prompt = tokenizer.encode("Once upon a time")
    theirs = list(prompt)
    ours = list(prompt)
    cache = KVCache(shared_oracle.decoder.config)
    next_ids = prompt
    for _ in range(24):
        next_ids = [int(shared_oracle.decoder.forward(next_ids, cache, last_only=True).argmax())]
        ours += next_ids
        theirs.append(int(shared_oracle.logits(theirs)[-1].argmax()))
    assert ours == theirs


def test_last_only_gives_the_last_row_of_all_logits(tiny_oracle: Any) -> None:
    oracle = tiny_oracle("llama")
    ids = oracle.text(12)
    every = oracle.decoder.forward(ids, KVCache(oracle.decoder.config))
    last = oracle.decoder.forward(ids, KVCache(oracle.decoder.config), last_only=True)
    assert last.shape == (1, oracle.decoder.config.vocab_size)
    assert (last[0] == every[-1]).all()


def test_a_quantized_head_may_differ_from_the_embedding_it_is_tied_to(tiny_oracle: Any) -> None:
    """The decoder takes lm_head.weight as it is handed out, so a loader may give it another format."""
    oracle = tiny_oracle("llama, tied")
    head = oracle.weights.matrices["lm_head.weight"]

    class DoubledHead:
        shape = head.shape

        def multiply(self, x: np.ndarray) -> np.ndarray:
            return 2 * head.multiply(x)

    matrices = dict(oracle.weights.matrices) | {"lm_head.weight": DoubledHead()}
    decoder = Decoder(oracle.decoder.config, ModelWeights(matrices, oracle.weights.vectors), "doubled")
    ids = oracle.text(5)
    cache = KVCache(decoder.config)
    assert (decoder.forward(ids, cache) == 2 * oracle.decoder.forward(ids, KVCache(decoder.config))).all()


def test_weights_that_overflow_flow_through_without_a_warning(tiny_oracle: Any) -> None:
    oracle = tiny_oracle("llama")
    vectors = dict(oracle.weights.vectors) | {"model.layers.0.input_layernorm.weight": np.full(48, 3e38, np.float32)}
    decoder = Decoder(oracle.decoder.config, ModelWeights(oracle.weights.matrices, vectors), "overflowing")
    assert np.isnan(decoder.forward([1, 2, 3], KVCache(decoder.config))).any()


def test_a_cache_of_another_model_is_refused(tiny_oracle: Any) -> None:
    cache = KVCache(tiny_oracle("qwen3").decoder.config)
    message = (
        "^llama: a KV cache of 3 layers, 2 heads and head size 16; 3, 2 and 12 are required. "
        "Give this model a cache of its own.$"
    )
    with pytest.raises(ModelError, match=message):
        tiny_oracle("llama").decoder.forward([1], cache)


def test_every_tensor_is_required(tiny_oracle: Any) -> None:
    oracle = tiny_oracle("qwen3, biases and window")
    weights = oracle.weights
    for tensor in (*weights.matrices, *weights.vectors):
        matrices = {name: matrix for name, matrix in weights.matrices.items() if name != tensor}
        vectors = {name: vector for name, vector in weights.vectors.items() if name != tensor}
        message = (
            f"^tiny: tensor {re.escape(tensor)} is missing; its shape .* is required. Convert the checkpoint again"
        )
        with pytest.raises(ModelError, match=message):
            Decoder(oracle.decoder.config, ModelWeights(matrices, vectors), "tiny")


def test_a_matrix_or_a_vector_of_another_shape_is_refused(tiny_oracle: Any) -> None:
    weights = tiny_oracle("llama").weights
    matrices = dict(weights.matrices) | {"model.layers.1.mlp.up_proj.weight": weights.matrices["lm_head.weight"]}
    message = (
        r"^tiny: tensor model.layers.1.mlp.up_proj.weight has shape \(96, 48\); config.json requires \(88, 48\). "
        "Convert the checkpoint again, or take the config.json that belongs to it.$"
    )
    with pytest.raises(ModelError, match=message):
        Decoder(tiny_oracle("llama").decoder.config, ModelWeights(matrices, weights.vectors), "tiny")
    vectors = dict(weights.vectors) | {"model.norm.weight": np.ones(47, np.float32)}
    with pytest.raises(ModelError, match=r"tensor model.norm.weight has shape \(47,\); config.json requires \(48,\)"):
        Decoder(tiny_oracle("llama").decoder.config, ModelWeights(weights.matrices, vectors), "tiny")
