"""Bytes and multiply-adds of a pass by hand. Parameters are compared in tests/interop/test_families.py, by family."""

from typing import Any

import pytest
from published.model_cards import LLAMA_3_1_8B, MIXTRAL_8X7B

from mxconv.arch.fields import Fields
from mxconv.arch.model_sizes import ModelSizes
from mxconv.cost.counts import (
    attention_multiply_adds,
    count_pass,
    kv_bytes,
    multiplied_weights,
)
from mxconv.errors import ModelError, MxconvError

DENSE: dict[str, Any] = {
    "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 6,
    "num_key_value_heads": 2, "vocab_size": 96, "max_position_embeddings": 64,
}  # fmt: skip
MIXTURE: dict[str, Any] = DENSE | {"num_local_experts": 6, "num_experts_per_tok": 2}


def architecture(values: dict[str, Any]) -> ModelSizes:
    return ModelSizes.from_fields(Fields(values, "config.json"))


def test_a_pass_reads_every_matrix_once_and_the_cache_of_each_layer() -> None:
    a = architecture(LLAMA_3_1_8B)
    weights = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336) + 128256 * 4096
    plain = count_pass(a, "bf16", context=100)
    assert plain.weight_bytes == 2 * weights
    assert plain.scale_bytes == 0
    assert plain.kv_bytes == 100 * 32 * 2 * 8 * 128 * 2
    assert plain.matrix_multiply_adds == weights
    assert plain.attention_multiply_adds == 100 * 32 * 2 * 32 * 128
    four = count_pass(a, "mxfp4", num_tokens=4, batch=2, context=100, kv_dtype="fp8")
    assert four.weight_bytes == weights / 2
    assert four.scale_bytes == weights / 32
    assert four.kv_bytes == 2 * 100 * 32 * 2 * 8 * 128
    assert four.matrix_multiply_adds == 8 * weights
    assert four.attention_multiply_adds == 8 * plain.attention_multiply_adds
    assert four.num_bytes == four.weight_bytes + four.scale_bytes + four.kv_bytes


def test_a_packages_own_bits_replace_the_typical_ones() -> None:
    a = architecture(LLAMA_3_1_8B)
    assert count_pass(a, "bsfp", bits_per_weight=10.0).num_bytes == pytest.approx(multiplied_weights(a) * 10 / 8)


def test_a_window_bounds_what_attention_reads() -> None:
    windowed = architecture(DENSE | {"model_type": "mistral", "sliding_window": 16})
    full = architecture(DENSE | {"model_type": "mistral", "sliding_window": None})
    assert kv_bytes(windowed, 64) == kv_bytes(full, 16)
    assert attention_multiply_adds(windowed, 64) == attention_multiply_adds(full, 16)
    gpt_oss = architecture(MIXTURE | {"model_type": "gpt_oss", "sliding_window": 8})  # layers 0 and 2 see a window
    assert kv_bytes(gpt_oss, 64) == (64 + 2 * 8) * 2 * 2 * 64 * 2


def test_more_tokens_read_more_experts_up_to_all() -> None:
    a = architecture(MIXTRAL_8X7B)
    expert = 3 * 4096 * 14336
    others = multiplied_weights(a, 1) - 32 * 2 * expert
    assert multiplied_weights(a, 2) == pytest.approx(others + 32 * expert * 8 * (1 - 0.75**2))
    assert multiplied_weights(a, 1000) == pytest.approx(others + 32 * expert * 8)
    assert count_pass(a, "bf16", 4).matrix_multiply_adds == 4 * multiplied_weights(a, 1)


def test_a_list_of_layers_is_checked() -> None:
    values = DENSE | {"model_type": "qwen3_moe", "num_experts": 6, "num_experts_per_tok": 2}
    with pytest.raises(ModelError, match=r'mlp_only_layers is "1"; a list of layer numbers is required'):
        architecture(values | {"moe_intermediate_size": 24, "mlp_only_layers": "1"})


def test_unknown_codecs_and_cache_types_are_errors() -> None:
    a = architecture(LLAMA_3_1_8B)
    with pytest.raises(MxconvError, match=r"codec 'q4': unknown; one of bf16, .* is required"):
        count_pass(a, "q4")
    with pytest.raises(MxconvError, match=r"KV dtype 'q4': unknown; one of fp32, .* is required"):
        count_pass(a, "bf16", kv_dtype="q4")


def test_each_layer_reads_keys_of_its_own_size() -> None:
    values = DENSE | {"model_type": "gemma4_text", "head_dim": 8, "global_head_dim": 16, "sliding_window": 10}
    a = architecture(values | {"layer_types": ["sliding_attention", "sliding_attention", "full_attention"]})
    assert kv_bytes(a, 64) == 2 * 2 * 2 * (10 * 8 + 10 * 8 + 64 * 16)
    assert attention_multiply_adds(a, 64) == 2 * 6 * (10 * 8 + 10 * 8 + 64 * 16)
