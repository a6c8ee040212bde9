"""Heads in the speculators format, with the configuration that its own library writes."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from checkpoints import write_safetensors, write_tiny_llama

from mxconv.errors import ModelError
from mxconv.report.inspection import inspect_weights
from mxconv.report.sources import open_weights

DRAFT, TARGET, WIDTH = 24, 96, 32
KNOWN = np.sort(np.random.default_rng(0).choice(TARGET, DRAFT, replace=False))  # target ids that the head knows


def config(**changes: Any) -> dict[str, Any]:
    """As Eagle3SpeculatorConfig of speculators 0.4 saves it, sizes aside."""
    return {
        "architectures": ["Eagle3Speculator"],
        "auto_map": {"": "eagle3.Eagle3SpeculatorConfig"},
        "draft_vocab_size": DRAFT,
        "eagle_aux_hidden_state_layer_ids": [2, 16, 29],
        "norm_before_residual": True,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {"proposal_type": "sampled", "speculative_tokens": 9},
                {"accept_tolerance": 0.0, "proposal_type": "greedy", "speculative_tokens": 5, "verifier_accept_k": 1},
            ],
            "verifier": {"architectures": ["LlamaForCausalLM"], "name_or_path": "meta-llama/Llama-3.1-8B-Instruct"},
        },
        "speculators_model_type": "eagle3",
        "speculators_version": "0.4.0",
        "target_hidden_size": None,
        "transformer_layer_config": {
            "model_type": "llama",
            "hidden_size": WIDTH,
            "num_hidden_layers": 1,
            "vocab_size": TARGET,
        },
    } | changes


def write_head(folder: Path, members: dict[str, Any] | None = None, **changes: Any) -> Path:
    """The tensors of such a head that matter here; None leaves one out."""
    known = np.zeros(TARGET, bool)
    known[KNOWN] = True
    tensors: dict[str, Any] = {
        "d2t": KNOWN - np.arange(DRAFT),
        "t2d": known,
        "fc.weight": np.ones((WIDTH, 3 * WIDTH), ml_dtypes.bfloat16),
        "layers.0.self_attn.q_proj.weight": np.ones((WIDTH, 2 * WIDTH), ml_dtypes.bfloat16),
        "lm_head.weight": np.ones((DRAFT, WIDTH), ml_dtypes.bfloat16),
    } | changes
    write_safetensors(folder / "model.safetensors", {n: t for n, t in tensors.items() if t is not None})
    (folder / "config.json").write_text(json.dumps(config() if members is None else members))
    return folder


def listed(folder: Path) -> dict[str, Any]:
    with open_weights(str(folder)) as weights:
        found: dict[str, Any] = inspect_weights(weights).to_json()
    return found


def test_an_eagle3_head_is_listed_as_what_it_is(tmp_path: Path) -> None:
    found = listed(write_head(tmp_path))
    assert found["draft_head"] == {
        "format": "speculators",
        "kind": "eagle3",
        "format_version": "0.4.0",
        "verifier": "meta-llama/Llama-3.1-8B-Instruct",
        "verifier_architectures": ["LlamaForCausalLM"],
        "num_draft_tokens": 5,
        "num_hidden_layers": 1,
        "hidden_size": WIDTH,
        "target_layers": [2, 16, 29],
        "draft_vocab_size": DRAFT,
        "target_vocab_size": TARGET,
        "vocab_mapping": "24 of the target's 96 tokens, by d2t and t2d",
    }
    assert found["notes"][0] == (
        "draft head, EAGLE-3 (speculators format 0.4.0), for meta-llama/Llama-3.1-8B-Instruct: 1 layer of width 32, "
        "5 tokens a round; vocabulary: 24 of the target's 96 tokens, by d2t and t2d. Run it below its "
        "model with --draft eagle3:PATH_OR_ID."
    )
    assert {tensor["name"] for tensor in found["tensors"]} >= {"d2t", "t2d", "fc.weight"}


def test_a_model_is_no_draft_head(tmp_path: Path) -> None:
    found = listed(write_tiny_llama(tmp_path, num_hidden_layers=1))
    assert found["draft_head"] is None
    assert not any("draft head" in note for note in found["notes"])


def test_a_head_may_say_little(tmp_path: Path) -> None:
    members = {"speculators_model_type": "mlp_speculator", "speculators_config": {"verifier": None}}
    found = listed(write_head(tmp_path, members, d2t=None, t2d=None))
    assert found["draft_head"]["kind"] == "mlp_speculator"
    assert found["draft_head"]["vocab_mapping"] == "the target's, no mapping"
    assert "draft head, mlp_speculator (speculators format), for an unnamed model: ? layers" in found["notes"][0]


@pytest.mark.parametrize(
    ("changes", "mapping"),
    [
        ({"d2t": None, "t2d": None}, "reduced, but its mapping is missing"),
        ({"t2d": None}, "24 of the target's 96 tokens, by d2t"),
    ],
)
def test_a_mapping_is_named_by_its_tensors(changes: dict[str, Any], mapping: str, tmp_path: Path) -> None:
    assert listed(write_head(tmp_path, **changes))["draft_head"]["vocab_mapping"].endswith(mapping)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"draft_vocab_size": -3}, r"draft_vocab_size is -3; an integer from 1 to"),
        ({"speculators_model_type": 3}, r"speculators_model_type is 3; a text or null is required"),
        ({"speculators_config": []}, r"speculators_config is \[\]; an object or null is required"),
        (
            {"speculators_config": {"proposal_methods": [1]}},
            r"proposal_methods is \[1\]; a list of objects is required",
        ),
        ({"eagle_aux_hidden_state_layer_ids": "2"}, r"layer_ids is \"2\"; a list of layer numbers or null is required"),
        ({"speculators_config": {"verifier": {"architectures": [4]}}}, r"architectures is \[4\]; a list of texts"),
    ],
)
def test_values_of_another_kind_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=message):
        listed(write_head(tmp_path, config(**changes)))
