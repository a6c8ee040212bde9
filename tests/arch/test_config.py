"""config.json of every style to descriptions, and what families refuse."""

import math
from pathlib import Path
from typing import Any

import pytest

from mxconv.arch.config import ModelConfig
from mxconv.arch.description import Attention
from mxconv.arch.elements import GatedDeltaNet, Mamba2, ShortConvolution
from mxconv.arch.families.keys import FULL, SLIDING
from mxconv.arch.families.registry import describe_file, describe_values
from mxconv.arch.rope_parameters import RopeParameters
from mxconv.errors import CheckpointError, ModelError

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 172,
    "num_hidden_layers": 5,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 512,
}
MISTRAL = LLAMA | {"model_type": "mistral"}
QWEN2 = LLAMA | {"model_type": "qwen2"}
QWEN3 = LLAMA | {"model_type": "qwen3"}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (LLAMA, {"head_dim": 8, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "tie_word_embeddings": False}),
        (LLAMA, {"qkv_bias": False, "output_bias": False, "mlp_bias": False, "qk_norm": False, "windows": (None,) * 5}),
        (LLAMA, {"rope": RopeParameters(10000.0, "default")}),
        (LLAMA | {"num_key_value_heads": None}, {"num_key_value_heads": 8}),
        (QWEN2, {"qkv_bias": True, "output_bias": False}),
        (MISTRAL | {"attention_bias": True, "mlp_bias": True}, {"qkv_bias": False, "mlp_bias": False}),
        (QWEN3, {"head_dim": 128, "qk_norm": True}),
        (QWEN3 | {"head_dim": 24, "attention_bias": True}, {"head_dim": 24, "output_bias": True}),
    ],
)
def test_absent_keys_mean_what_they_mean_in_transformers(values: dict[str, Any], expected: dict[str, Any]) -> None:
    config = describe_values(values)
    assert {name: getattr(config, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("values", "windows"),
    [
        (MISTRAL, (4096,) * 5),
        (MISTRAL | {"sliding_window": None}, (None,) * 5),
        (MISTRAL | {"sliding_window": 7}, (7,) * 5),
        (LLAMA | {"sliding_window": 7}, (None,) * 5),
        (QWEN2 | {"sliding_window": 7, "max_window_layers": 0}, (None,) * 5),
        (QWEN2 | {"use_sliding_window": True, "sliding_window": None, "max_window_layers": 0}, (None,) * 5),
        (QWEN2 | {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 3}, (None, None, None, 7, 7)),
        (QWEN3 | {"use_sliding_window": True, "sliding_window": 7}, (None,) * 5),
        (
            QWEN3 | {"use_sliding_window": True, "sliding_window": 7, "layer_types": [SLIDING, FULL, *[SLIDING] * 3]},
            (7, None, 7, 7, 7),
        ),
    ],
)
def test_windows_follow_the_rules_of_each_kind(values: dict[str, Any], windows: tuple[int | None, ...]) -> None:
    assert describe_values(values).windows == windows


SUPPORTED = r"mxconv supports default, linear, llama3,"
SIZE = r"an integer from 1 to 2147483647 is required\. Take the file that belongs"
ERRORS: list[tuple[dict[str, Any], str]] = [  # changes of a Llama's
    (
        {"model_type": "bloom"},
        r'model_type is "bloom"; mxconv runs .*, llama, .*\. Such a model can be quantized, inspected and verified; '
        r'how to add a family says CONTRIBUTING\.md, "Add a family"\.$',
    ),
    (
        {"model_type": "some_t5", "is_encoder_decoder": True, "type_vocab_size": 2},
        r'model_type is "some_t5"; .*\. It needs an encoder, attention in both directions, which mxconv does '
        r"not have\. Such a model can be quantized, ",
    ),
    (
        {"model_type": "jamba_vl", "text_config": {"model_type": "jamba", "mamba_dt_rank": 16}},
        r'model_type is "jamba_vl"; .*\. It needs state space layers of the first Mamba, which mxconv does not have\.',
    ),
    (
        {"model_type": "mistral3", "text_config": {"model_type": "mamba"}},
        r'text_config: model_type is "mamba"; mxconv runs ',
    ),
    (
        {"model_type": "gemma3", "text_config": {}},
        r"text_config: model_type is missing; mxconv supports .*\. Use a model of such a kind\.",
    ),
    ({"model_type": ["llama"]}, r'model_type is \["llama"\]; mxconv supports .*llama,'),
    ({"hidden_act": "gelu"}, r'hidden_act is "gelu"; mxconv supports silu\.'),
    ({"hidden_size": "64"}, r'hidden_size is "64"; ' + SIZE),
    ({"vocab_size": 512.0}, r"vocab_size is 512\.0; " + SIZE),
    ({"intermediate_size": True}, "intermediate_size is true; " + SIZE),
    ({"num_attention_heads": 0}, "num_attention_heads is 0; " + SIZE),
    ({"vocab_size": 10**12}, "vocab_size is 1000000000000; " + SIZE),
    ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000; at most 4096 are"),
    ({"rms_norm_eps": 0}, r"rms_norm_eps is 0; a finite number is required, above 0\."),
    ({"rms_norm_eps": float("nan")}, "rms_norm_eps is NaN; a finite number is required"),
    ({"rms_norm_eps": "1e-5"}, r'rms_norm_eps is "1e-5"; a number is required\.'),
    ({"rope_theta": 10**400}, r"rope_theta is 1000\d*\.\.\.; a finite number is required, from 1 on"),
    ({"rope_theta": 0.5}, r"rope_theta is 0\.5; a finite number is required, from 1 on\."),
    ({"tie_word_embeddings": 1}, r"tie_word_embeddings is 1; true or false is required\."),
    ({"num_key_value_heads": 3}, r"num_key_value_heads is 3; a divisor of num_attention_heads, 8, is required\."),
    ({"hidden_size": 60}, r"hidden_size is 60; without head_dim, a multiple of num_attention_heads, 8, is required\."),
    ({"head_dim": 7}, r"head_dim is 7; RoPE rotates pairs, so an even head_dim is required, not 7\."),
    ({"hidden_size": 56}, r"hidden_size is 56; RoPE rotates pairs, .* not 7\."),
    ({"rope_scaling": "linear"}, r'rope_scaling is "linear"; an object or null is required'),
    ({"rope_scaling": {"rope_type": "axial", "factor": 4}}, r'rope_scaling: rope_type is "axial"; ' + SUPPORTED),
    ({"rope_scaling": {"type": "mrope", "factor": 4}}, r'rope_scaling: type is "mrope"; ' + SUPPORTED),
    ({"rope_parameters": {"rope_type": "axial"}}, r'rope_parameters: rope_type is "axial"; ' + SUPPORTED),
    (
        {"rope_scaling": {"rope_type": "longrope"}},
        r"rope_scaling: short_factor is missing; a list of numbers above 0, one a pair of values that rotate, is req",
    ),
    (
        {"rope_scaling": {"rope_type": "longrope", "short_factor": [1, 2, 3]}},
        r"rope_scaling: short_factor is \[1, 2, 3\]; 4 numbers, one a pair, are required\.",
    ),
    ({"rope_scaling": {"rope_type": "yarn"}}, r"rope_scaling: factor is missing; a number is required\."),
    (
        {"rope_scaling": {"type": "linear", "factor": 0.5}},
        r"rope_scaling: factor is 0\.5; a finite number is required, from 1 on\.",
    ),
    (
        {"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4}},
        r"rope_scaling: high_freq_factor is 4; more than low_freq_factor, 4, is required\.",
    ),
    (
        {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
        r'rope_parameters is \{"full_attention": .*\}; one set for all layers is supported\. Use a model without it\.',
    ),
    (
        {"partial_rotary_factor": 0.5, "rope_scaling": {"type": "linear", "factor": 2.0}},
        r"partial_rotary_factor is 0\.5; only 1 is supported\.",
    ),
    (
        {"model_type": "phi3", "partial_rotary_factor": 1.5},
        r"partial_rotary_factor is 1\.5; at most 1 is required\.",
    ),
    ({"model_type": "mistral", "sliding_window": "all"}, r'sliding_window is "all"; ' + SIZE),
    (
        {"model_type": "qwen2", "max_window_layers": -1},
        r"max_window_layers is -1; an integer from 0 on is required\.",
    ),
    (
        {"model_type": "qwen3", "layer_types": ["full_attention"]},
        r'layer_types is \["full_attention"\]; a list of num_hidden_layers, 5, names is required\.',
    ),
    (
        {"model_type": "qwen3", "layer_types": ["full_attention"] * 4 + ["linear_attention"]},
        r"layer_types is .*\.\.\.; mxconv supports full_attention, sliding_attention\.",
    ),
]


@pytest.mark.parametrize("key", ["model_type", "hidden_size"])
def test_a_missing_key_is_named(key: str) -> None:
    values = {name: value for name, value in LLAMA.items() if name != key}
    with pytest.raises(ModelError, match=rf"^config\.json: {key} is missing; .* (is required|supports .*)\. "):
        describe_values(values)


def test_a_long_value_is_quoted_in_part() -> None:
    with pytest.raises(ModelError) as caught:
        describe_values(LLAMA | {"hidden_act": "x" * 10_000})
    assert len(str(caught.value)) < 250


def test_errors_of_a_file_name_its_path(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with pytest.raises(CheckpointError, match=r"config\.json: no such file; a readable file is required\."):
        describe_file(path)
    path.write_text('{"model_type": "mamba"}')
    with pytest.raises(ModelError) as caught:
        describe_file(path)
    assert str(caught.value).startswith(f'{path}: model_type is "mamba"; mxconv runs ')


SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 172,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 512,
}
STATE_SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 90,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
}
GRANITE = STATE_SIZES | {"model_type": "granitemoehybrid", "num_local_experts": 0, "mamba_n_heads": 6}
LFM2 = STATE_SIZES | {"model_type": "lfm2", "num_key_value_heads": 2}
GROUPED = SIZES | {"model_type": "glm4_moe", "n_routed_experts": 8, "num_experts_per_tok": 3}
NEXT = STATE_SIZES | {"model_type": "qwen3_next", "num_experts": 0}


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


def test_a_tower_keeps_its_own_tensors_and_leaves_the_others_alone() -> None:
    config = describe_values({"model_type": "gemma3", "text_config": {**SIZES, "model_type": "gemma3_text"}})
    assert config.own_name("model.language_model.layers.0.mlp.up_proj.weight") == "model.layers.0.mlp.up_proj.weight"
    assert config.own_name("language_model.model.norm.weight") == "model.norm.weight"
    assert config.own_name("lm_head.weight") == "lm_head.weight"
    assert config.own_name("model.vision_tower.encoder.layers.0.mlp.fc1.weight") is None
    text = describe_values({**SIZES, "model_type": "gemma3_text"})
    assert text.own_name("model.norm.weight") == "model.norm.weight"


REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        SIZES | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 5},
        r"num_experts_per_tok is 5; at most the number of experts, 4, is required\.",
    ),
    (
        GROUPED | {"n_routed_experts": 10, "num_experts_per_tok": 2, "n_group": 4},
        r"n_group is 4; groups of two or more of the 10 experts are required\.",
    ),
    (
        GROUPED | {"n_group": 4, "topk_group": 1},
        r"topk_group is 1; 1 to n_group, with 3 experts or more among them, is required\.",
    ),
    (
        SIZES | {"model_type": "llama4_text", "layer_types": ["sliding_attention"]},
        r'layer_types is \["sliding_attention"\]; a list of 8 names, each chunked_attention or full_attention, is req',
    ),
    (
        GROUPED | {"model_type": "deepseek_v3", "moe_intermediate_size": 8, "first_k_dense_replace": "3"},
        r'first_k_dense_replace is "3"; a number of layers is required\.',
    ),
    (
        SIZES | {"model_type": "gemma4_text", "num_kv_shared_layers": 7},
        "num_kv_shared_layers is 7; layers before these, of each of their kinds, are required",
    ),
    (
        SIZES | {"model_type": "gemma4_text", "vocab_size_per_layer_input": 100},
        r"vocab_size_per_layer_input is 100; vocab_size, 512, is required\.",
    ),
    (
        SIZES | {"model_type": "gemma3_text", "use_bidirectional_attention": True},
        r"use_bidirectional_attention is true; mxconv supports causal attention\.",
    ),
    (
        SIZES | {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "add_cross_attention": True},
        r"add_cross_attention is true; mxconv supports false\.",
    ),
    (
        SIZES | {"model_type": "smollm3", "no_rope_layers": [1, 0]},
        r"no_rope_layers is \[1, 0\]; a list of num_hidden_layers, 8, numbers 0 or 1 is required\.",
    ),
    (
        SIZES | {"model_type": "olmo2", "hidden_act": "mish"},
        r'hidden_act is "mish"; mxconv supports silu, swish, gelu, ',
    ),
    (
        SIZES | {"model_type": "gpt_neox", "rotary_pct": 0.01},
        r"partial_rotary_factor is missing; more, of heads of 8 values, is required\.",
    ),
    (
        SIZES | {"model_type": "exaone4", "sliding_window": 9, "sliding_window_pattern": "AB"},
        r'sliding_window_pattern is "AB"; a number from 1 on, or a text of L and G, is required\.',
    ),
    (GRANITE | {"mamba_n_heads": 7}, "mamba_n_heads is 7; heads of together 96 values are required"),
    (GRANITE | {"mamba_n_groups": 4}, "mamba_n_groups is 4; a divisor of the 6 heads is required"),
    (GRANITE | {"time_step_limit": [1, 0]}, r"time_step_limit is \[1, 0\]; two numbers from 0 on"),
    (GRANITE | {"time_step_limit": [0, None]}, r"time_step_limit is \[0, null\]; two numbers from 0 on"),
    (
        GRANITE | {"layer_types": ["mamba"] * 3 + ["rwkv"]},
        "layer_types is .*; mxconv supports full_attention, lin",
    ),
    (
        NEXT | {"linear_num_key_heads": 5},
        "linear_num_value_heads is missing; a multiple of linear_num_key_heads, 5",
    ),
    (NEXT | {"hidden_act": "gelu"}, 'hidden_act is "gelu"; mxconv supports silu, swish'),
    (LFM2 | {"num_attention_heads": 8, "layer_types": ["conv"]}, r"layer_types is \[\"conv\"\]; a list of num_hidden"),
]


@pytest.mark.parametrize(("values", "message"), [*((LLAMA | changes, words) for changes, words in ERRORS), *REFUSED])
def test_a_config_that_cannot_be_served_is_refused_by_key_and_value(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=rf"^config\.json: {message}"):
        describe_values(values)


def attends(config: ModelConfig) -> list[bool]:
    return [isinstance(layer.mixer, Attention) for layer in config.layers]


def test_older_names_of_keys_and_layers_say_the_same() -> None:
    newer = LFM2 | {"tie_word_embeddings": False}
    kinds = ["conv", "conv", "full_attention", "conv"]
    older = {key: value for key, value in newer.items() if key not in ("tie_word_embeddings", "intermediate_size")}
    older |= {"tie_embedding": False, "block_ff_dim": 90, "full_attn_idxs": [2]}
    assert describe_values(older) == describe_values(newer | {"layer_types": kinds})
    named = [
        describe_values(GRANITE | {"layer_types": [a, a, b, a]})
        for a, b in (("mamba", "attention"), ("linear_attention", "full_attention"))
    ]
    assert named[0] == named[1]
    assert attends(named[0]) == [False, False, True, False]


def test_files_without_lists_of_layers_have_each_familys_own() -> None:
    assert attends(describe_values(STATE_SIZES | {"model_type": "qwen3_5_text"})) == [False, False, False, True]
    assert attends(describe_values(NEXT | {"full_attention_interval": 2})) == [False, True, False, True]
    assert attends(describe_values(GRANITE)) == [False] * 4
    assert attends(describe_values(LFM2)) == [True] * 4


def test_the_inner_size_of_lfm2_is_adjusted_unless_it_says_not_to() -> None:
    values = LFM2 | {"block_multiple_of": 16}
    assert describe_values(values).intermediate_size == 64  # 60, rounded up
    assert describe_values(values | {"block_ffn_dim_multiplier": 1.3}).intermediate_size == 80
    assert describe_values(values | {"block_auto_adjust_ff_dim": False}).intermediate_size == 90


def test_sizes_of_states_follow_from_the_parts() -> None:
    net = describe_values(STATE_SIZES | {"model_type": "qwen3_5_text"}).layers[0].mixer
    assert isinstance(net, GatedDeltaNet)
    assert (net.state.num_channels, net.state.num_gates, net.state.memory) == (8192, 64, (32, 128, 128))
    mamba = describe_values(GRANITE | {"time_step_limit": [0.01, {"__float__": "Infinity"}]}).layers[0].mixer
    assert isinstance(mamba, Mamba2)
    assert mamba.step_limits == (0.01, math.inf)
    assert mamba.state.input_size == 96 + 2 * 256 + 6
    short = describe_values(LFM2 | {"layer_types": ["conv"] * 4})
    assert isinstance(short.layers[0].mixer, ShortConvolution)
    assert short.state_sizes is not None and short.state_sizes.input_size == 48
    assert (short.num_key_value_heads, short.head_dim, short.windows) == (0, 0, ())
