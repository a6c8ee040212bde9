"""What is said of families: by the README's table, and to somebody whose model is of none."""

import re
from pathlib import Path

import pytest
from packed_families import PACKED

from mxconv.arch.config import ModelConfig
from mxconv.arch.families.registry import FAMILIES, TOWERS, describe_values
from mxconv.arch.gguf.architectures import ARCHITECTURES

ROOT = Path(__file__).parents[3]
TABLE = re.search(r"^\| family \|.*?\n\n", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
SIZES: dict[str, object] = {
    "vocab_size": 96,
    "hidden_size": 48,
    "n_embd": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "n_layer": 4,
    "num_attention_heads": 4,
    "n_head": 4,
    "num_key_value_heads": 4,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "n_group": 1,
    "topk_group": 1,
    "mamba_n_heads": 6,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "llama_4_scaling_beta": 0.1,
        "original_max_position_embeddings": 64,
    },
}


OWN: dict[str, dict[str, object]] = {
    "lfm2": {"layer_types": ["conv", "conv", "full_attention", "conv"]},
    "granitemoehybrid": {"num_local_experts": 0},
}


def described(model_type: str) -> ModelConfig:
    """With the family's defaults."""
    texts = {"gemma3": "gemma3_text", "gemma4": "gemma4_text", "llama4": "llama4_text", "mistral3": "ministral3"}
    texts |= {"qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text"}
    text = texts.get(model_type)
    if text is None:
        return describe_values(SIZES | OWN.get(model_type, {}) | {"model_type": model_type})
    return describe_values({"model_type": model_type, "text_config": SIZES | {"model_type": text}})


def test_the_readme_names_every_family() -> None:
    assert TABLE is not None
    rows = [line.split("|")[2] for line in TABLE[0].splitlines()[2:] if line]
    assert TABLE[0].count("|") == 4 * (len(rows) + 2)
    assert {kind for kinds in rows for kind in re.findall(r"`(\w+)`", kinds)} == {*FAMILIES, *TOWERS}


def test_the_readme_says_what_each_family_is_tested_against() -> None:
    checkpoints = pytest.importorskip("family_checkpoints", reason="transformers makes these checkpoints")
    assert TABLE is not None
    said: dict[str, set[str]] = {"transformers": set(), "llama.cpp": set(), "compressed-tensors": set()}
    for line in TABLE[0].splitlines()[2:]:
        if not line:
            continue
        _, _, kinds, oracles, _ = line.split("|")
        every = re.findall(r"`(\w+)`", kinds)
        for oracle, found in said.items():
            if named := re.search(rf"{re.escape(oracle)}(?: \(([^)]*)\))?", oracles):
                found.update(every if named[1] is None else re.findall(r"`(\w+)`", named[1]))
    kinds_of = {name: own["model_type"] for name, own in checkpoints.FAMILIES.items()}
    packed = {kinds_of[name] for name in PACKED} | {"llama", "glm4_moe"}  # in tests of their own
    assert said == {
        "transformers": set(kinds_of.values()),
        "llama.cpp": {
            *ARCHITECTURES,
            "gemma3",
            "gemma4",
            "llama4",
            "mistral3",
            "qwen3_5",
            "qwen3_5_moe",
        },  # tests/interop/gguf/test_families.py
        "compressed-tensors": packed,
    }


def test_a_tower_keeps_its_own_tensors_and_leaves_the_others_alone() -> None:
    config = described("gemma3")
    assert config.own_name("model.language_model.layers.0.mlp.up_proj.weight") == "model.layers.0.mlp.up_proj.weight"
    assert config.own_name("language_model.model.norm.weight") == "model.norm.weight"
    assert config.own_name("lm_head.weight") == "lm_head.weight"
    assert config.own_name("model.vision_tower.encoder.layers.0.mlp.fc1.weight") is None
    assert described("gemma3_text").own_name("model.norm.weight") == "model.norm.weight"
