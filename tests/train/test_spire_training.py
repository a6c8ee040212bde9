"""Training a SPIRe draft: its losses place by place, what each switch leaves out, and a draft that runs."""

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from checkpoints import TINY_LLAMA, llama_tensors
from commands import run_mxconv
from packages import quantize
from spires import spire_config, tensors_by_type, torch_logits, write_spire
from tiny_levels import by_hand, decoder_of, speculate
from trained_levels import TRAINED

from mxconv.drafts.loader import LoadedPackage
from mxconv.drafts.spire import SpireConfig, config_for
from mxconv.errors import ModelError
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.train.spire_training import SpireLoss, SpireModel, SpireTask
from mxconv.train.training_task import FrozenTarget, distillation_loss, expected_acceptance, hard_target_loss
from mxconv.train.windows import Windows

IDS = np.random.default_rng(0).integers(0, 1024, (2, 21))
VALUES = json.loads((TRAINED / "config.json").read_text())
BLOCK = 4


def task_of(target: FrozenTarget, past_memory: Literal["target", "embeddings"] = "target", **choices: Any) -> SpireTask:
    values = config_for(VALUES, [1, 2], past_memory=past_memory)
    return SpireTask(values, target, BLOCK, torch.bfloat16, **choices)


@pytest.mark.parametrize("num_prompt", [0, 6])
@pytest.mark.parametrize("loss", ["mixed", "distillation", "text"])
def test_losses_are_those_of_each_place_in_a_block(loss: SpireLoss, num_prompt: int, target: FrozenTarget) -> None:
    torch.manual_seed(0)
    task = task_of(target, loss=loss)
    model, ids = task.model(), torch.from_numpy(IDS)
    states, theirs = target.layers(ids, [1, 2])
    with torch.no_grad():
        logits = model(ids, states, BLOCK)
        found = task.losses(model, ids, Windows(IDS.astype(np.int32), num_prompt))
    for place in range(BLOCK):
        rows = [t for t in range(20) if t % BLOCK == place and t + 1 >= num_prompt]
        ours, wanted, following = logits[:, rows], theirs[:, rows], ids[:, [row + 1 for row in rows]]
        expected = {
            "mixed": (distillation_loss(ours, wanted) - expected_acceptance(ours, wanted)) / 2,
            "distillation": distillation_loss(ours, wanted),
            "text": hard_target_loss(ours, following),
        }[loss]
        torch.testing.assert_close(found[place], expected)


def test_what_the_switches_leave_out(target: FrozenTarget) -> None:
    whole = task_of(target).model().state_dict()
    theirs = target.model.state_dict()
    name = "self_attn.q_proj.weight"
    torch.testing.assert_close(whole[f"model.layers.0.{name}"], theirs[f"model.layers.1.{name}"])
    torch.manual_seed(1)
    fresh = task_of(target, is_pruned=False).model().state_dict()
    assert (fresh[f"model.layers.0.{name}"] != theirs[f"model.layers.1.{name}"]).any()
    alone = task_of(target, has_feedback=False).model().spire.memory_weights
    assert not alone.requires_grad
    torch.testing.assert_close(torch.softmax(alone, -1), torch.eye(2, 3))
    ids = torch.from_numpy(IDS)
    blind = task_of(target, past_memory="embeddings")
    assert torch.isfinite(blind.losses(blind.model(), ids, Windows(IDS.astype(np.int32)))).all()


def test_a_trained_one_drafts(texts: Path, tmp_path: Path) -> None:
    sizes = ("--layers", "1", "--window", "8", "--length", "32", "--batch-tokens", "128", "--steps", "4")
    paths = (texts / "texts.txt", "--target", TRAINED, "-o", tmp_path / "spire")
    made = run_mxconv("train", "spire", *map(str, paths), *sizes, "--json")
    assert made.returncode == 0, made.stderr
    assert set(json.loads(made.stdout.splitlines()[-1])["losses"]) == {f"token {i}" for i in range(1, 5)}
    quantize(TRAINED, tmp_path / "package", drafts=(f"spire:{tmp_path / 'spire'}",))
    with LoadedPackage(tmp_path / "package", ["target", "spire"]) as loaded:
        ids = loaded.tokenizer.encode("def read(self")
        found, generation = speculate(Hierarchy(loaded.levels, [4], [0.0]), ids, 16)
        assert found == by_hand(decoder_of(loaded.levels[0]), ids, 16)
        assert generation.trace.statistics[1].num_proposed > 0


def test_more_layers_than_the_target_has_are_refused(tmp_path: Path) -> None:
    made = run_mxconv("train", "spire", "x.txt", "--target", str(TRAINED), "-o", str(tmp_path / "s"), "--layers", "4")
    assert made.returncode == 1 and "--layers 4: the target has 3; at most so many are required" in made.stderr


# ---- the draft as it is trained ----

TINY: dict[str, Any] = TINY_LLAMA | {"num_hidden_layers": 4, "max_position_embeddings": 512}
TENSORS = llama_tensors(TINY, "F32")
LENGTH = 22


def write(folder: Path, **changes: Any) -> tuple[Path, SpireModel]:
    """A draft on disk, and the same for training."""
    config = spire_config(TINY, (1, 3), **changes)
    tensors = tensors_by_type(TENSORS, config)
    folder = write_spire(folder / "spire", config, tensors)
    model = SpireModel(SpireConfig.from_file(folder / "config.json"))
    rounded = {name: torch.from_numpy(array.astype(np.float16).astype(np.float32)) for name, array in tensors.items()}
    model.load_state_dict(rounded)  # strict: the names are those of the file
    return folder, model


def text_and_states(batch: int = 2, num_layers: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, TINY["vocab_size"], (batch, LENGTH), generator=generator)
    return tokens, 2 * torch.randn(num_layers, batch, LENGTH, TINY["hidden_size"], generator=generator)


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


def test_every_weight_moves_and_states_are_given(tmp_path: Path) -> None:
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
    values = config_for(TINY, (2, 3), **changes)
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
    config = config_for(TINY, range(4), window=64)
    model = SpireModel(SpireConfig.from_dict(config))
    model.load_target(target_tensors())
    model.remove_feedback()
    tokens, _ = text_and_states()
    nothing = torch.zeros(4, 2, LENGTH, TINY["hidden_size"])
    ordinary = model(tokens, nothing, LENGTH).detach()
    reference = transformers_logits(tokens)
    torch.testing.assert_close(ordinary, reference, rtol=1e-4, atol=1e-5 * float(reference.abs().max()))
    model(tokens, nothing, LENGTH).square().mean().backward()
    assert model.spire.memory_weights.grad is None


def transformers_logits(tokens: torch.Tensor) -> torch.Tensor:
    from transformers import LlamaConfig, LlamaForCausalLM

    target = LlamaForCausalLM(LlamaConfig(**{key: value for key, value in TINY.items() if key != "model_type"}))
    target.load_state_dict(target_tensors())
    with torch.no_grad():
        logits: torch.Tensor = target(tokens).logits
    return logits


def test_a_config_for_a_target_is_one_that_the_run_time_reads(tmp_path: Path) -> None:
    windowed = TINY | {"model_type": "mistral", "sliding_window": 8}
    values = config_for(windowed, (2, 3), sink=4, window=9, past_memory="embeddings")
    path = tmp_path / "config.json"
    path.write_text(json.dumps(values))
    config = SpireConfig.from_file(path)
    assert (config.target_layers, config.sink, config.window, config.past_memory) == ((2, 3), 4, 9, "embeddings")
    assert config.decoder.model_type == "mistral" and config.decoder.windows == (None, None)
    assert config.decoder.hidden_size == 64 and config.sizes.least_layers == 4
    for layers in ([], [4], [-1, 2]):
        with pytest.raises(ModelError, match=r"SPIRe draft of layers \[.*\]: the target has 0 to 3; at least one"):
            config_for(TINY, layers)
