"""config.json from a GGUF file's keys."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_files import tensors, write_gguf

from mxconv.arch.families.registry import describe_values
from mxconv.arch.rope_parameters import RopeParameters
from mxconv.engine.rope import frequencies
from mxconv.errors import CheckpointError
from mxconv.gguf.rotations import llama3_factors
from mxconv.open_source import open_source


def config_of(path: Path) -> dict[str, Any]:
    with open_source(path) as checkpoint:
        assert checkpoint.config is not None
        describe_values(checkpoint.config)  # what mxconv runs
        return checkpoint.config


def test_keys_and_tensors_become_a_configuration(tmp_path: Path) -> None:
    assert config_of(write_gguf(tmp_path / "a.gguf")) == {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 40,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,  # float32 in the file
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "pad_token_id": None,
        "attention_bias": False,
        "mlp_bias": False,
        "rope_scaling": None,
    }


def test_a_file_without_an_output_head_is_tied(tmp_path: Path) -> None:
    values = tensors()
    del values["output.weight"]
    assert config_of(write_gguf(tmp_path / "a.gguf", values))["tie_word_embeddings"]


def test_linear_scaling_and_special_ids_are_taken(tmp_path: Path) -> None:
    keys = {
        "rope.scaling.type": "linear",
        "rope.scaling.factor": 4.0,
        "rope.freq_base": 5e5,
        "tokenizer.ggml.bos_token_id": 3,
        "tokenizer.ggml.eos_token_id": 5,
        "tokenizer.ggml.eot_token_id": 7,
    }
    config = config_of(write_gguf(tmp_path / "a.gguf", change=lambda found: found.update(keys)))
    assert config["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}
    assert (config["rope_theta"], config["bos_token_id"], config["eos_token_id"]) == (500000.0, 3, [5, 7])


def test_the_factors_of_llama_3_become_its_parameters(tmp_path: Path) -> None:
    factors = llama3_factors(16, RopeParameters(10000.0, "llama3", 32.0))
    config = config_of(write_gguf(tmp_path / "a.gguf", tensors() | {"rope_freqs.weight": factors}))
    assert config["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }


def test_factors_divide_frequencies_as_our_own_rope_does() -> None:
    """The model's RoPE agrees with transformers; see tests/engine/test_rope.py."""
    rope = RopeParameters(5e5, "llama3", 8.0, 1.0, 4.0, 8192)
    divided = frequencies(RopeParameters(5e5), 128) / llama3_factors(128, rope)
    np.testing.assert_allclose(divided, frequencies(rope, 128), rtol=1e-6)
    assert len(np.unique(llama3_factors(128, rope))) > 3


EPSILON, LENGTH = "attention.layer_norm_rms_epsilon", "the length of a head, 16, is required"
REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"block_count": None}, "block_count is missing; an integer from 1 to 2147483647"),
    ({"embedding_length": "64"}, "embedding_length is 64; an integer from 1 to"),
    ({"attention.head_count": 0}, "attention.head_count is 0; an integer"),
    ({EPSILON: float("nan")}, f"{EPSILON} is nan; a finite number above 0 is required"),
    ({"rope.dimension_count": 8}, f"rope.dimension_count is 8; {LENGTH}"),
    (
        {"attention.key_length": 15},
        "attention.key_length is 15; RoPE rotates pairs, so an even length is required, not",
    ),
    (
        {"rope.scaling.type": "dynamic"},
        "rope.scaling.type is dynamic; none, linear, yarn, longrope, or the factors of Llama 3.1 are supported",
    ),
]


@pytest.mark.parametrize(("changes", "message"), REFUSALS)
def test_a_key_that_makes_no_configuration_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    def change(keys: dict[str, Any]) -> None:
        keys.update(changes)
        for key in [key for key, value in keys.items() if value is None]:
            del keys[key]

    path = write_gguf(tmp_path / "a.gguf", change=change)
    with pytest.raises(CheckpointError, match=re.escape(f"{path}: llama.{message}")):
        open_source(path)


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf", architecture="gemma9")
    with pytest.raises(CheckpointError, match=r"architecture is 'gemma9'; one of arcee, cohere2, .* is required"):
        open_source(path)


def test_tensors_that_make_no_configuration_are_refused(tmp_path: Path) -> None:
    factors = np.linspace(1, 8, 8, dtype=np.float32)
    without = {name: values for name, values in tensors().items() if name != "token_embd.weight"}
    for found, message in (
        (without, "has no matrix token_embd.weight; a whole model is required"),
        (
            tensors() | {"rope_freqs.weight": factors},
            r"rope_freqs.weight of \[8\] up to 8 are not the factors of Llama",
        ),
    ):
        with pytest.raises(CheckpointError, match=message):
            open_source(write_gguf(tmp_path / "a.gguf", found))
