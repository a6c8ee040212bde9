"""The SPIRe draft as it is trained: the logits that it has at run time, pruned targets, ablations."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import TINY_LLAMA, llama_tensors
from spires import spire_config, tensors_by_type, torch_logits, write_spire

from mxconv.drafts.spire import SpireConfig, config_for
from mxconv.errors import ModelError
from mxconv.train.spire_training import SpireModel

TARGET: dict[str, Any] = TINY_LLAMA | {"num_hidden_layers": 4, "max_position_embeddings": 512}
TENSORS = llama_tensors(TARGET, "F32")
LENGTH = 22


def write(folder: Path, **changes: Any) -> tuple[Path, SpireModel]:
    """A draft on disk, and the same for training."""
    config = spire_config(TARGET, (1, 3), **changes)
    tensors = tensors_by_type(TENSORS, config)
    folder = write_spire(folder / "spire", config, tensors)
    model = SpireModel(SpireConfig.from_file(folder / "config.json"))
    rounded = {name: torch.from_numpy(array.astype(np.float16).astype(np.float32)) for name, array in tensors.items()}
    model.load_state_dict(rounded)  # strict: the names are those of the file
    return folder, model


def text_and_states(batch: int = 2, num_layers: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, TARGET["vocab_size"], (batch, LENGTH), generator=generator)
    return tokens, 2 * torch.randn(num_layers, batch, LENGTH, TARGET["hidden_size"], generator=generator)


@pytest.mark.parametrize(
    ("changes", "block"),
    [
        ({}, 1),
        ({"window": 7}, 3),
        ({"window": 2, "sink": 0}, 4),
        ({"window": 1, "sink": 2}, 5),
        ({"window": 7, "sink": 30}, 4),
        ({"past_memory": "embeddings", "window": 7}, 4),
        ({"layer_type": "qwen2"}, 3),
        ({"layer_type": "qwen3", "head_dim": 16}, 4),
        ({"tie_word_embeddings": True}, 5),
        ({}, 64),  # a text that is shorter than a block is one block
    ],
    ids=str,
)
def test_it_gives_what_the_draft_says_at_run_time(changes: dict[str, Any], block: int, tmp_path: Path) -> None:
    """After every prefix of a multiple of k tokens, against the reference that recomputes everything.

    That reference is the one which the run-time draft is compared with in tests/drafts/test_spire.py.
    """
    folder, model = write(tmp_path, **changes)
    tokens, states = text_and_states()
    with torch.no_grad():
        found = model(tokens, None if changes.get("past_memory") else states, block).numpy()
    for row, text in enumerate(tokens.tolist()):
        for start in range(0, LENGTH, block * (1 + row)):
            past = states[:, row, :start].numpy()
            expected = torch_logits(folder, past, text[start : start + block], text[:start])
            own = found[row, start : start + block]
            np.testing.assert_allclose(own, expected, rtol=1e-4, atol=1e-5 * float(np.abs(expected).max()))


def test_what_is_trained_and_what_is_given(tmp_path: Path) -> None:
    """Every weight moves, memory weights among them; the target's states are given."""
    _, model = write(tmp_path)
    tokens, states = text_and_states()
    states.requires_grad_()
    model(tokens, states, 4).square().mean().backward()
    assert states.grad is None
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().max() > 0, name


def target_tensors() -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array) for name, array in TENSORS.items()}


def pruned(**changes: Any) -> SpireModel:
    values = config_for(TARGET, (2, 3), **changes)
    model = SpireModel(SpireConfig.from_dict(values))
    model.load_target(target_tensors())
    return model


def test_a_pruned_target_is_its_embedding_last_layers_norm_and_head() -> None:
    model, tensors = pruned(), target_tensors()
    state = model.state_dict()
    assert state.pop("spire.memory_weights").abs().max() == 0
    for name, tensor in state.items():
        source = name.replace("layers.0.", "layers.2.") if ".0." in name else name.replace("layers.1.", "layers.3.")
        assert torch.equal(tensor, tensors[source]), name
    untrained = SpireModel(model.config).state_dict()
    weights = torch.cat([tensor.flatten() for name, tensor in untrained.items() if "norm" not in name])
    assert 0.015 < weights.std() < 0.025


def test_a_target_that_does_not_fit_is_refused() -> None:
    model, tensors = pruned(), target_tensors()
    tensors["model.layers.3.mlp.up_proj.weight"] = torch.zeros(9, 64)
    with pytest.raises(
        ModelError, match=r"target: tensor model.layers.3.mlp.up_proj.weight has shape \(9, 64\); \(172"
    ):
        model.load_target(tensors)
    del tensors["model.layers.3.mlp.up_proj.weight"]
    with pytest.raises(ModelError, match=r"target: tensor model.layers.3.mlp.up_proj.weight is missing; \(172, 64\)"):
        model.load_target(tensors)


def test_without_feedback_a_block_is_an_ordinary_pass() -> None:
    """With weights that stay: every layer sees what went into it, so all layers copied give the target's logits."""
    config = config_for(TARGET, range(4), window=64)
    model = SpireModel(SpireConfig.from_dict(config))
    model.load_target(target_tensors())
    model.remove_feedback()
    tokens, _ = text_and_states()
    nothing = torch.zeros(4, 2, LENGTH, TARGET["hidden_size"])
    ordinary = model(tokens, nothing, LENGTH).detach()
    reference = transformers_logits(tokens)
    torch.testing.assert_close(ordinary, reference, rtol=1e-4, atol=1e-5 * float(reference.abs().max()))
    model(tokens, nothing, LENGTH).square().mean().backward()
    assert model.spire.memory_weights.grad is None


def transformers_logits(tokens: torch.Tensor) -> torch.Tensor:
    from transformers import LlamaConfig, LlamaForCausalLM

    target = LlamaForCausalLM(LlamaConfig(**{key: value for key, value in TARGET.items() if key != "model_type"}))
    target.load_state_dict(target_tensors())
    with torch.no_grad():
        logits: torch.Tensor = target(tokens).logits
    return logits


def test_a_config_for_a_target_is_one_that_the_run_time_reads(tmp_path: Path) -> None:
    windowed = TARGET | {"model_type": "mistral", "sliding_window": 8}
    values = config_for(windowed, (2, 3), sink=4, window=9, past_memory="embeddings")
    path = tmp_path / "config.json"
    path.write_text(json.dumps(values))
    config = SpireConfig.from_file(path)
    assert (config.target_layers, config.sink, config.window, config.past_memory) == ((2, 3), 4, 9, "embeddings")
    assert config.decoder.model_type == "mistral" and config.decoder.windows == (None, None)
    assert config.decoder.hidden_size == 64 and config.sizes.least_layers == 4
    for layers in ([], [4], [-1, 2]):
        with pytest.raises(ModelError, match=r"SPIRe draft of layers \[.*\]: the target has 0 to 3; at least one"):
            config_for(TARGET, layers)
