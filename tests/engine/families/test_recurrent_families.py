"""What config.json files of families with states may say, in older words too, and what is refused."""

import json
import math
from typing import Any

import pytest

from mxconv.arch.config import ModelConfig
from mxconv.arch.description import Attention
from mxconv.arch.families.table import describe_values
from mxconv.arch.state_mixers import GatedDeltaNet, Mamba2, ShortConvolution
from mxconv.errors import ModelError

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 90,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
}
GRANITE = SIZES | {"model_type": "granitemoehybrid", "num_local_experts": 0, "mamba_n_heads": 6}
NEXT = SIZES | {"model_type": "qwen3_next", "num_experts": 0}


def attends(config: ModelConfig) -> list[bool]:
    return [isinstance(layer.mixer, Attention) for layer in config.layers]


def test_older_names_of_keys_and_layers_say_the_same() -> None:
    newer = SIZES | {"model_type": "lfm2", "tie_word_embeddings": False, "num_key_value_heads": 2}
    kinds = ["conv", "conv", "full_attention", "conv"]
    older = {key: value for key, value in newer.items() if key not in ("tie_word_embeddings", "intermediate_size")}
    older |= {"tie_embedding": False, "block_ff_dim": 90, "full_attn_idxs": [2]}
    assert describe_values(older) == describe_values(newer | {"layer_types": kinds})
    named = [
        describe_values(GRANITE | {"layer_types": [a, a, b, a]})
        for a, b in (
            ("mamba", "attention"),
            ("linear_attention", "full_attention"),
        )
    ]
    assert named[0] == named[1]
    assert attends(named[0]) == [False, False, True, False]


def test_files_without_lists_of_layers_have_each_familys_own() -> None:
    assert attends(describe_values(SIZES | {"model_type": "qwen3_5_text"})) == [False, False, False, True]
    assert attends(describe_values(NEXT | {"full_attention_interval": 2})) == [False, True, False, True]
    assert attends(describe_values(GRANITE)) == [False] * 4
    assert attends(describe_values(SIZES | {"model_type": "lfm2", "num_key_value_heads": 2})) == [True] * 4


def test_the_inner_size_of_lfm2_is_adjusted_unless_it_says_not_to() -> None:
    values = SIZES | {"model_type": "lfm2", "num_key_value_heads": 2, "block_multiple_of": 16}
    assert describe_values(values).intermediate_size == 64  # 60, rounded up
    assert describe_values(values | {"block_ffn_dim_multiplier": 1.3}).intermediate_size == 80
    assert describe_values(values | {"block_auto_adjust_ff_dim": False}).intermediate_size == 90


def test_sizes_of_states_follow_from_the_parts() -> None:
    net = describe_values(SIZES | {"model_type": "qwen3_5_text"}).layers[0].mixer
    assert isinstance(net, GatedDeltaNet)
    assert (net.state.num_channels, net.state.num_gates, net.state.memory) == (8192, 64, (32, 128, 128))
    mamba = describe_values(GRANITE | {"time_step_limit": [0.01, {"__float__": "Infinity"}]}).layers[0].mixer
    assert isinstance(mamba, Mamba2)
    assert mamba.step_limits == (0.01, math.inf)
    assert mamba.state.input_size == 96 + 2 * 256 + 6
    short = describe_values(SIZES | {"model_type": "lfm2", "layer_types": ["conv"] * 4, "num_key_value_heads": 2})
    assert isinstance(short.layers[0].mixer, ShortConvolution)
    assert short.state_sizes is not None and short.state_sizes.input_size == 48
    assert (short.num_key_value_heads, short.head_dim, short.windows) == (0, 0, ())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            NEXT | {"num_experts": 4, "num_experts_per_tok": 5},
            r"num_experts_per_tok is 5; at most the number of experts",
        ),
        (GRANITE | {"mamba_n_heads": 7}, r"mamba_n_heads is 7; heads of together 96 values are required"),
        (GRANITE | {"mamba_n_groups": 4}, r"mamba_n_groups is 4; a divisor of the 6 heads is required"),
        (GRANITE | {"time_step_limit": [1, 0]}, r"time_step_limit is \[1, 0\]; two numbers from 0 on"),
        (GRANITE | {"time_step_limit": [0, None]}, r"time_step_limit is \[0, null\]; two numbers from 0 on"),
        (
            GRANITE | {"layer_types": ["mamba"] * 3 + ["rwkv"]},
            r"layer_types is .*; mxconv supports full_attention, lin",
        ),
        (
            NEXT | {"linear_num_key_heads": 5},
            r"linear_num_value_heads is missing; a multiple of linear_num_key_heads, 5",
        ),
        (NEXT | {"hidden_act": "gelu"}, r'hidden_act is "gelu"; mxconv supports silu, swish'),
        (
            SIZES | {"model_type": "lfm2", "num_attention_heads": 8, "layer_types": ["conv"]},
            r"layer_types is \[\"conv\"\]; a list of num_hidden",
        ),
    ],
)
def test_what_cannot_be_served_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        describe_values(json.loads(json.dumps(values)))
