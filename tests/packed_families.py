"""Families whose compressed-tensors export transformers runs in a test."""

from typing import Any

# a family, what gives its matrices rows of whole blocks, and how many of them are packed
SIZES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96}
PACKED: dict[str, tuple[dict[str, Any], int]] = {
    "gemma2": ({}, 28),
    "glm4": ({}, 25),
    "gpt2": ({}, 12),
    "mixtral": ({}, 77),
    "qwen3_moe": ({"moe_intermediate_size": 64}, 74),
    "deepseek_v3": ({"moe_intermediate_size": 64}, 93),
    "olmoe": ({"intermediate_size": 96}, 89),
    "qwen3_5": ({}, 23),
    "qwen3_next, with experts": ({"moe_intermediate_size": 64}, 71),
    "lfm2": ({}, 22),
    "granitemoehybrid": ({"mamba_n_heads": 8}, 15),
    "mamba2": ({"num_heads": 8}, 9),
}
