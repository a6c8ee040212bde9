"""Training an EAGLE-3 head: its losses token by token, what it begins with and writes, and a head that drafts."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from commands import run_mxconv
from packages import quantize
from tiny_levels import by_hand, decoder_of, speculate
from trained_levels import EMBEDDING, PROMPTS, TRAINED

from mxconv.drafts.eagle3 import Eagle3Config, config_for, layers_for
from mxconv.drafts.loader import LoadedPackage
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.train.eagle3_training import Eagle3Model, Eagle3Task
from mxconv.train.training_task import FrozenTarget
from mxconv.train.windows import Windows

VALUES: dict[str, Any] = json.loads((TRAINED / "config.json").read_text())
IDS = np.random.default_rng(0).integers(0, 1024, (2, 21))
KNOWN = np.sort(np.random.default_rng(1).permutation(1024)[:300])
BLOCK, STEPS = 4, 30
PROMPT = "def read(self"


@pytest.fixture(scope="module")
def task(target: FrozenTarget) -> Eagle3Task:
    values = config_for(VALUES, layers_for(3), len(KNOWN), BLOCK)
    return Eagle3Task(values, target, KNOWN, BLOCK, torch.bfloat16)


@pytest.fixture(scope="module")
def folder(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A head trained for a few steps in two stages, and packages of its target without and with it."""
    folder = tmp_path_factory.mktemp("eagle3")
    for name in ("texts.txt", "own.jsonl"):
        shutil.copy(texts / name, folder / name)
    made = run_mxconv(*command(folder, "head", "--draft-vocab-size", "200", "--json"))
    assert made.returncode == 0, made.stderr
    result = json.loads(made.stdout.splitlines()[-1])
    assert set(result["losses"]) == {f"token {place}" for place in range(1, BLOCK + 1)}
    quantize(TRAINED, folder / "package", drafts=(f"eagle3:{folder / 'head'}",))
    return folder


def command(folder: Path, name: str, *more: str) -> list[str]:
    options = ("--target", TRAINED, "-o", folder / name, "--generated", folder / "own.jsonl", "--length", "32")
    sizes = ("--batch-tokens", "128", "--steps", STEPS, "--learning-rate", "3e-3")
    return [str(word) for word in ("train", "eagle3", folder / "texts.txt", *options, *sizes, *more)]


@pytest.mark.parametrize("num_prompt", [0, 6])
def test_losses_are_those_of_each_token_of_a_proposal(num_prompt: int, task: Eagle3Task) -> None:
    """Row by row against the target's softmax, cut to the tokens that are known; prefixes end in the target's text."""
    torch.manual_seed(0)
    model, ids = task.model(), torch.from_numpy(IDS)
    with torch.no_grad():
        found = task.losses(model, ids, Windows(IDS.astype(np.int32), num_prompt))
        layers = task.target.model(ids, output_hidden_states=True)
        states = torch.stack([layers.hidden_states[layer] for layer in (2, 1, 0)])
        logits = model(states, task.target.model.model.embed_tokens(ids), BLOCK)
    theirs = layers.logits.double().numpy()
    for step in range(BLOCK):
        losses = []
        for row in range(2):
            for place in range(20 - step):
                if place + 2 < num_prompt:  # the text up to token place + 1 is not all of the prompt yet
                    continue
                shares = np.exp(theirs[row, place + 1 + step])
                shares = shares[KNOWN] / shares[KNOWN].sum()
                ours = logits[step][row, place].double().numpy()
                losses.append(-(shares * (ours - np.log(np.exp(ours).sum()))).sum())
        assert float(found[step]) == pytest.approx(np.mean(losses), rel=1e-5)


def test_it_begins_with_the_targets_head_norm_and_last_layer(task: Eagle3Task, target: FrozenTarget) -> None:
    theirs = target.model.state_dict()
    state = task.model().state_dict()
    torch.testing.assert_close(state["norm.weight"], theirs["model.norm.weight"])
    torch.testing.assert_close(state["lm_head.weight"], theirs[EMBEDDING][torch.from_numpy(KNOWN)])  # tied
    size, last = VALUES["hidden_size"], f"model.layers.{VALUES['num_hidden_layers'] - 1}."
    for name in ("self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "post_attention_layernorm"):
        torch.testing.assert_close(state[f"layers.0.{name}.weight"], theirs[f"{last}{name}.weight"])
    torch.testing.assert_close(state["layers.0.hidden_norm.weight"], theirs[f"{last}input_layernorm.weight"])
    for name in ("q_proj", "k_proj", "v_proj"):
        of_embedding, of_feature = state[f"layers.0.self_attn.{name}.weight"].split(size, 1)
        torch.testing.assert_close(of_feature, theirs[f"{last}self_attn.{name}.weight"])
        assert 0.016 < of_embedding.std() < 0.024
    deepest_first = torch.cat([torch.eye(size), torch.zeros(size, 2 * size)], 1)  # it reads states 2, 1 and 0
    torch.testing.assert_close(state["fc.weight"], deepest_first)
    assert "embed_tokens.weight" not in state


def test_where_sizes_differ_the_layer_begins_at_random(task: Eagle3Task, target: FrozenTarget) -> None:
    model, last = Eagle3Model(task.config), dict(target.model.model.layers[-1].named_parameters())
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.load_layer(last | {"mlp.up_proj.weight": last["mlp.up_proj.weight"][1:]})
    model.load_layer({name: tensor for name, tensor in last.items() if name != "mlp.up_proj.weight"})
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, before[name])
    weights = [tensor.flatten() for name, tensor in before.items() if tensor.ndim == 2 and name != "lm_head.weight"]
    assert 0.018 < torch.cat(weights).std() < 0.022


@pytest.mark.parametrize(
    ("num_layers", "layers"),
    [(1, (0,)), (2, (0, 1)), (3, (2, 1, 0)), (4, (1, 2, 3)), (6, (1, 3, 5)), (7, (2, 3, 4))],
)
def test_a_small_target_has_the_states_that_are_read(num_layers: int, layers: tuple[int, ...]) -> None:
    assert layers_for(num_layers) == layers
    assert layers_for(32) == (2, 16, 29)
    config = Eagle3Config.from_dict(config_for(VALUES, layers, 1024, 4))
    assert config.layers_of(num_layers) == layers


def test_the_config_has_the_targets_rope_and_sizes() -> None:
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling |= {"original_max_position_embeddings": 256}
    values = {**VALUES, "model_type": "qwen3", "head_dim": 24, "rope_theta": 5e5, "rope_scaling": scaling}
    config = Eagle3Config.from_dict(config_for(values, (2, 1), 99, 4))
    assert (config.layer.rope.theta, config.layer.rope.factor) == (5e5, 8.0)
    assert (config.layer.head_dim, config.layer.model_type, config.layer.qk_norm) == (24, "llama", False)
    assert (config.draft_vocab_size, config.layer_ids, config.vocab_size) == (99, (2, 1), 1024)


def test_it_learns_within_thirty_steps(folder: Path) -> None:
    lines = [json.loads(line) for line in (folder / "head" / "losses.jsonl").read_text().splitlines()]
    stages = [line["stage"] for line in lines]
    assert stages == sorted(stages, key=["text", "own text"].index) and len(lines) == STEPS
    last = stages.count("text") - 1
    assert 15 < last < STEPS - 1
    for name in lines[0]["parts"]:
        assert lines[last]["parts"][name] < lines[0]["parts"][name] - 1, name


def test_what_is_written_is_a_head_of_the_most_frequent_tokens(folder: Path) -> None:
    tensors = safetensors.torch.load_file(folder / "head" / "model.safetensors")
    floats = {tensor.dtype for name, tensor in tensors.items() if name not in ("d2t", "t2d")}
    assert floats == {torch.bfloat16} and "embed_tokens.weight" not in tensors
    with LoadedPackage(folder / "package", ["target"]) as loaded:
        text = loaded.tokenizer.encode((folder / "texts.txt").read_text())
    ids = [*text[: len(text) // 32 * 32]]
    for line in (folder / "own.jsonl").read_text().splitlines():
        ids += json.loads(line)["token_ids"]
    counts = {token: ids.count(token) for token in range(1024)}
    expected = sorted(sorted(counts, key=lambda token: (-counts[token], token))[:200])
    known = tensors["d2t"] + torch.arange(200)
    assert known.tolist() == expected
    assert torch.nonzero(tensors["t2d"]).flatten().tolist() == expected


def test_what_is_written_drafts_tokens_that_are_accepted(folder: Path) -> None:
    """That the run time computes what was trained is asserted in test_eagle3_model.py."""
    with LoadedPackage(folder / "package", ["target", "head"]) as loaded:
        num_accepted = 0
        for prompt in PROMPTS:
            ids = loaded.tokenizer.encode(prompt)
            found, generation = speculate(Hierarchy(loaded.levels, [BLOCK], [0.0], "chain"), ids, 24)
            assert found == by_hand(decoder_of(loaded.levels[0]), ids, 24)
            num_accepted += generation.trace.statistics[1].num_accepted
    assert num_accepted > 0


def test_what_is_written_generates_the_targets_text(folder: Path) -> None:
    """Converted to 4 bits, and with a vocabulary that is all of the target's."""
    made = run_mxconv("quantize", str(folder / "head"), "-o", str(folder / "head-4bit"))
    assert made.returncode == 0, made.stderr
    made = run_mxconv(*command(folder, "whole", "--steps", "2", "--block", "2"))
    assert made.returncode == 0, made.stderr
    config = json.loads((folder / "whole" / "config.json").read_text())
    assert config["draft_vocab_size"] == 1024
    tensors = safetensors.torch.load_file(folder / "whole" / "model.safetensors")
    assert not tensors["d2t"].any() and tensors["t2d"].all() and len(tensors["d2t"]) == 1024
    for head in ("head-4bit", "whole"):
        words = ("--prompt", PROMPT, "--levels", "target", "--draft", f"eagle3:{folder / head}", "--check")
        made = run_mxconv("generate", str(folder / "package"), *words, "--max-new-tokens", "16")
        assert made.returncode == 0, made.stderr
        assert "1 of 1 texts identical to plain decoding" in made.stdout


def test_more_tokens_than_the_target_has_are_refused_before_anything_is_trained(folder: Path) -> None:
    made = run_mxconv(*command(folder, "refused", "--draft-vocab-size", "1025"))
    message = "--draft-vocab-size 1025: the target has 1024 tokens; at most so many are"
    assert made.returncode == 1 and message in made.stderr.replace("\n", " ")
    assert not list(folder.glob("refused*"))


def test_a_dry_run_counts_the_weights(folder: Path, target: FrozenTarget) -> None:
    made = run_mxconv(*command(folder, "dry", "--draft-vocab-size", "100", "--dry-run", "--json"))
    result = json.loads(made.stdout.splitlines()[-1])
    size, inner = VALUES["hidden_size"], VALUES["intermediate_size"]
    kv_size = VALUES["num_key_value_heads"] * VALUES["head_dim"]
    heads = VALUES["num_attention_heads"] * VALUES["head_dim"]
    layer = 2 * size * (heads + 2 * kv_size) + heads * size + 3 * size * inner + 3 * size
    own = layer + 3 * size * size + size + 100 * size
    assert result["num_parameters"] == own
    a_token = 6.0 * (BLOCK * own - (BLOCK - 1) * 3 * size * size) + 2.0 * target.num_parameters
    assert result["flops"] == pytest.approx(a_token * STEPS * 128)
    assert not list(folder.glob("dry*"))
