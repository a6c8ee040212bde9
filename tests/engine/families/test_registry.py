"""What the table of docs/models.md says of families, and how a tower's tensors are named."""

import re
from pathlib import Path

import pytest
from packed_families import PACKED

from mxconv.arch.families.registry import FAMILIES, TOWERS, describe_values
from mxconv.gguf.architectures import ARCHITECTURES

ROOT = Path(__file__).parents[3]
SIZES = {"vocab_size": 96, "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 4}
TABLE = re.search(r"^\| family \|.*?\n\n", (ROOT / "docs" / "models.md").read_text(), re.DOTALL | re.MULTILINE)


def test_the_page_names_every_family() -> None:
    assert TABLE is not None
    rows = [line.split("|")[2] for line in TABLE[0].splitlines()[2:] if line]
    assert TABLE[0].count("|") == 4 * (len(rows) + 2)
    assert {kind for kinds in rows for kind in re.findall(r"`(\w+)`", kinds)} == {*FAMILIES, *TOWERS}


def test_the_page_says_what_each_family_is_tested_against() -> None:
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
        # tests/gguf/test_families.py
        "llama.cpp": {*ARCHITECTURES, "gemma3", "gemma4", "llama4", "mistral3", "qwen3_5", "qwen3_5_moe"},
        "compressed-tensors": packed,
    }


def test_a_tower_keeps_its_own_tensors_and_leaves_the_others_alone() -> None:
    config = describe_values({"model_type": "gemma3", "text_config": {**SIZES, "model_type": "gemma3_text"}})
    assert config.own_name("model.language_model.layers.0.mlp.up_proj.weight") == "model.layers.0.mlp.up_proj.weight"
    assert config.own_name("language_model.model.norm.weight") == "model.norm.weight"
    assert config.own_name("lm_head.weight") == "lm_head.weight"
    assert config.own_name("model.vision_tower.encoder.layers.0.mlp.fc1.weight") is None
    text = describe_values({**SIZES, "model_type": "gemma3_text"})
    assert text.own_name("model.norm.weight") == "model.norm.weight"
