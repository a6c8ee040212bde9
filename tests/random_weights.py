"""Random weights for a tiny model of any architecture, by NumPy alone: for machines that lack the oracles."""

from collections.abc import Iterator

import numpy as np

from mxconv.arch.config import ModelConfig
from mxconv.codecs.float16 import FloatFormat
from mxconv.engine.weights import ModelWeights
from mxconv.kernels.matrix import DenseMatrix


def shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The name and the shape of every tensor, but for a tied output matrix."""
    hidden, inner = config.hidden_size, config.intermediate_size
    queries = config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    projections = {
        "self_attn.q_proj": (queries, hidden, config.qkv_bias),
        "self_attn.k_proj": (keys, hidden, config.qkv_bias),
        "self_attn.v_proj": (keys, hidden, config.qkv_bias),
        "self_attn.o_proj": (hidden, queries, config.output_bias),
        "mlp.gate_proj": (inner, hidden, config.mlp_bias),
        "mlp.up_proj": (inner, hidden, config.mlp_bias),
        "mlp.down_proj": (hidden, inner, config.mlp_bias),
    }
    norms = {"input_layernorm": hidden, "post_attention_layernorm": hidden}
    if config.qk_norm:
        norms |= {"self_attn.q_norm": config.head_dim, "self_attn.k_norm": config.head_dim}
    yield "model.embed_tokens.weight", (config.vocab_size, hidden)
    for layer in range(config.num_hidden_layers):
        for name, (out_features, in_features, has_bias) in projections.items():
            yield f"model.layers.{layer}.{name}.weight", (out_features, in_features)
            if has_bias:
                yield f"model.layers.{layer}.{name}.bias", (out_features,)
        for name, length in norms.items():
            yield f"model.layers.{layer}.{name}.weight", (length,)
    yield "model.norm.weight", (hidden,)
    if not config.tie_word_embeddings:
        yield "lm_head.weight", (config.vocab_size, hidden)


def random_weights(config: ModelConfig, float_format: FloatFormat) -> ModelWeights:
    """Weights large enough to make logits that differ, norms around one, no bias at zero; exact in this format."""
    rng = np.random.default_rng(5)
    matrices, vectors = {}, {}
    for name, shape in shapes(config):
        values = rng.standard_normal(shape, np.float32) * np.float32(0.2 if len(shape) == 2 else 0.3)
        values += np.float32(name.endswith("norm.weight"))
        patterns = float_format.encode(values)
        if len(shape) == 2:
            matrices[name] = DenseMatrix(patterns, float_format)
        else:
            vectors[name] = float_format.decode(patterns)
    if config.tie_word_embeddings:
        matrices["lm_head.weight"] = matrices["model.embed_tokens.weight"]
    return ModelWeights(matrices, vectors)
