"""Files as they were published, in older styles than transformers writes now, and what families refuse."""

import math
from typing import Any

import pytest

from mxconv.arch.config import ModelConfig
from mxconv.arch.families.table import describe_values
from mxconv.errors import ModelError

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 172,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 512,
}


def described(model_type: str, **values: Any) -> ModelConfig:
    return describe_values(SIZES | {"model_type": model_type} | values)


def test_the_text_of_a_gemma_3_file_that_gives_five_sizes() -> None:
    text = {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    config = describe_values({"model_type": "gemma3", "text_config": text, "vision_config": {}})
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (8, 4, 256)
    assert (config.vocab_size, config.max_position_embeddings, config.tie_word_embeddings) == (262208, 131072, True)
    assert config.windows[:7] == (1024, 1024, 1024, 1024, 1024, None, 1024)
    near, far = config.layers[0].mixer.rope, config.layers[5].mixer.rope
    assert near is not None and far is not None
    assert (near.theta, near.rope_type, far.theta, far.rope_type, far.factor) == (1e4, "default", 1e6, "linear", 8.0)
    assert config.embedding_multiplier == math.sqrt(2560)


def test_olmo_3_scales_the_rotations_of_layers_that_see_all() -> None:
    yarn = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192}
    config = described("olmo3", rope_theta=500000, rope_scaling=yarn, max_position_embeddings=65536)
    near, far = config.layers[0].mixer.rope, config.layers[3].mixer.rope
    assert near is not None and far is not None
    assert (near.rope_type, near.theta, far.rope_type, far.theta) == ("default", 5e5, "yarn", 5e5)
    assert far.multiplier == pytest.approx(0.1 * math.log(8) + 1)


def test_phi_with_longrope_serves_its_original_context() -> None:
    scaling = {"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    config = described(
        "phi3", rope_scaling=scaling, original_max_position_embeddings=4096, max_position_embeddings=131072
    )
    assert config.max_position_embeddings == 4096
    assert config.rope.multiplier == pytest.approx(math.sqrt(1 + math.log(32) / math.log(4096)))


def test_dynamic_scaling_begins_beyond_the_positions_that_are_served() -> None:
    scaled = described("llama", rope_scaling={"type": "dynamic", "factor": 4.0})
    assert scaled.rope == described("llama").rope


def test_exaone_4_reads_a_pattern_of_letters() -> None:
    config = described("exaone4", sliding_window=9, sliding_window_pattern="LLLG")
    assert config.windows == (9, 9, 9, None, 9, 9, 9, None)
    assert [layer.mixer.rope is None for layer in config.layers[:4]] == [False, False, False, True]


def test_names_of_both_styles_are_one_decoders() -> None:
    gpt2 = describe_values({"model_type": "gpt2", "n_embd": 48, "n_layer": 2, "n_head": 4, "vocab_size": 96})
    assert gpt2.own_name("transformer.h.0.ln_1.weight") == gpt2.own_name("h.0.ln_1.weight") == "h.0.ln_1.weight"
    neox = described("gpt_neox")
    assert neox.own_name("lm_head.weight") == neox.own_name("embed_out.weight") == "embed_out.weight"


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "more experts than there are": (
        {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 5},
        r"num_experts_per_tok is 5; at most the number of experts, 4, is required\.",
    ),
    "groups that divide the experts unevenly": (
        {"model_type": "glm4_moe", "n_routed_experts": 10, "num_experts_per_tok": 2, "n_group": 4},
        r"n_group is 4; groups of two or more of the 10 experts are required\.",
    ),
    "groups with too few experts": (
        {"model_type": "glm4_moe", "n_routed_experts": 8, "num_experts_per_tok": 3, "n_group": 4, "topk_group": 1},
        r"topk_group is 1; 1 to n_group, with 3 experts or more among them, is required\.",
    ),
    "layers of another kind in llama 4": (
        {"model_type": "llama4_text", "layer_types": ["sliding_attention"]},
        r'layer_types is \["sliding_attention"\]; a list of 8 names, each chunked_attention or full_attention, is req',
    ),
    "dense layers that are no number": (
        {"model_type": "deepseek_v3", "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
        | {"n_group": 1, "topk_group": 1, "first_k_dense_replace": "3"},
        r'first_k_dense_replace is "3"; a number of layers is required\.',
    ),
    "shared layers without a source": (
        {"model_type": "gemma4_text", "num_kv_shared_layers": 7},
        r"num_kv_shared_layers is 7; layers before these, of each of their kinds, are required",
    ),
    "another table for layers' inputs": (
        {"model_type": "gemma4_text", "vocab_size_per_layer_input": 100},
        r"vocab_size_per_layer_input is 100; vocab_size, 512, is required\.",
    ),
    "gemma in both directions": (
        {"model_type": "gemma3_text", "use_bidirectional_attention": True},
        r"use_bidirectional_attention is true; mxconv supports causal attention\.",
    ),
    "a gpt2 with an encoder": (
        {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "add_cross_attention": True},
        r"add_cross_attention is true; mxconv supports false\.",
    ),
    "no_rope_layers of another length": (
        {"model_type": "smollm3", "no_rope_layers": [1, 0]},
        r"no_rope_layers is \[1, 0\]; a list of num_hidden_layers, 8, numbers 0 or 1 is required\.",
    ),
    "an activation that there is not": (
        {"model_type": "olmo2", "hidden_act": "mish"},
        r'hidden_act is "mish"; mxconv supports silu, swish, gelu, ',
    ),
    "a part of each head in Granite, scaled": (
        {"model_type": "granite", "partial_rotary_factor": 0.5, "rope_scaling": {"type": "linear", "factor": 2.0}},
        r"partial_rotary_factor is 0\.5; only 1 is supported\.",
    ),
    "so small a part that nothing rotates": (
        {"model_type": "gpt_neox", "rotary_pct": 0.01},
        r"partial_rotary_factor is missing; more, of heads of 8 values, is required\.",
    ),
    "a pattern of other letters": (
        {"model_type": "exaone4", "sliding_window": 9, "sliding_window_pattern": "AB"},
        r'sliding_window_pattern is "AB"; a number from 1 on, or a text of L and G, is required\.',
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_family_does_not_have_is_refused_by_key_and_value(name: str) -> None:
    values, message = REFUSED[name]
    with pytest.raises(ModelError, match=rf"^config\.json: {message}"):
        describe_values(SIZES | values)
