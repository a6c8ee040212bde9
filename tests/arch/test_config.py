from pathlib import Path
from typing import Any

import pytest

from mxconv.arch.families.keys import FULL, SLIDING
from mxconv.arch.families.registry import describe_file, describe_values
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


def test_absent_keys_mean_what_they_mean_in_transformers() -> None:
    config = describe_values(LLAMA)
    assert (config.head_dim, config.max_position_embeddings, config.rms_norm_eps) == (8, 2048, 1e-6)
    assert (config.rope.theta, config.rope.rope_type) == (10000.0, "default")
    assert not config.tie_word_embeddings
    assert not (config.qkv_bias or config.output_bias or config.mlp_bias or config.qk_norm)
    assert config.windows == (None,) * 5


def test_without_key_value_heads_there_is_one_for_each_head() -> None:
    for heads in ({"num_key_value_heads": None}, {}):
        values = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"} | heads
        assert describe_values(values).num_key_value_heads == 8


def test_only_qwen2_has_biases_by_its_kind() -> None:
    assert describe_values(QWEN2).qkv_bias
    assert not describe_values(QWEN2).output_bias
    assert not describe_values(MISTRAL | {"attention_bias": True, "mlp_bias": True}).qkv_bias
    assert describe_values(QWEN3 | {"attention_bias": True}).output_bias


def test_a_qwen3_head_has_128_values_where_the_file_does_not_say() -> None:
    assert describe_values(QWEN3).head_dim == 128
    assert describe_values(QWEN3 | {"head_dim": 24}).head_dim == 24
    assert describe_values(QWEN3).qk_norm


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
ERRORS: list[tuple[dict[str, Any], str]] = [
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


@pytest.mark.parametrize(("changes", "message"), ERRORS)
def test_a_config_that_cannot_be_served_is_refused_by_key_and_value(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=rf"^config\.json: {message}"):
        describe_values(LLAMA | changes)


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
