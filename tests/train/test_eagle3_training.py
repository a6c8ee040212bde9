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
from head_files import eagle3_config, write_eagle3
from hypothesis import given, settings
from hypothesis import strategies as st
from packages import quantize
from trained_levels import EMBEDDING, TRAINED

from mxconv.drafts.eagle3 import Eagle3Config, config_for, layers_for
from mxconv.drafts.loader import LoadedPackage
from mxconv.train.eagle3_training import Eagle3Model, Eagle3Task, attend
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


# ---- the head as it is trained ----

VECTORS = Path(__file__).parents[2] / "formats" / "vectors" / "eagle3" / "llama"
HIDDEN_SIZE, VOCAB_SIZE, LENGTH = 32, 60, 12
LAYER_IDS = "eagle_aux_hidden_state_layer_ids"


def load(folder: Path, num_layers: int = 8) -> tuple[Eagle3Model, torch.Tensor]:
    """A head on disk as it is trained, and its embedding."""
    values = json.loads((folder / "config.json").read_text())
    layers = Eagle3Config.from_dict(values).layers_of(num_layers)
    model = Eagle3Model(Eagle3Config.from_dict(values | {LAYER_IDS: list(layers)}))
    stored = safetensors.torch.load_file(folder / "model.safetensors")
    embedding = stored.pop("embed_tokens.weight").float()
    weights = {name: tensor.float() for name, tensor in stored.items() if name not in ("d2t", "t2d")}
    model.load_state_dict(weights)  # strict: the names are those of the file
    return model, embedding


def test_it_unrolls_as_the_speculators_package_does() -> None:
    """Every step of every prefix, of a head as new ones are."""
    model, embedding = load(VECTORS)
    vectors = safetensors.torch.load_file(VECTORS / "expected.safetensors")
    with torch.no_grad():
        logits = model(vectors["states"][:, None], embedding[vectors["tokens"]][None], len(vectors["hidden"]))
    for step, found in enumerate(logits):
        rows = len(vectors["tokens"]) - 1 - step
        assert found.shape[1] == rows
        np.testing.assert_allclose(found[0].numpy(), vectors["logits"][step, :rows], rtol=1e-5, atol=1e-5)


def random_text(num_states: int, batch: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, VOCAB_SIZE, (batch, LENGTH), generator=generator)
    return tokens, 2 * torch.randn(num_states, batch, LENGTH, HIDDEN_SIZE, generator=generator)


@settings(max_examples=12)
@given(st.integers(1, 9), st.integers(1, 4), st.integers(1, 3), st.integers(1, 10), st.integers(0, 99))
def test_attention_is_that_of_a_mask_over_all_steps(
    length: int, num_steps: int, kv_heads: int, most_rows: int, seed: int
) -> None:
    """torch's own attention over every step's keys, with the first step's triangle and a diagonal for each later one.

    So are the gradients, whether rows attend all at once or a few at a time.
    """
    rows = max(length - num_steps + 1, 1)
    generator = torch.Generator().manual_seed(seed)

    def draw(count: int, num_heads: int) -> torch.Tensor:
        return torch.randn(2, count, num_heads, 6, generator=generator, requires_grad=True)

    queries = draw(rows, 2 * kv_heads)
    seen = [
        (draw(rows + num_steps - 1 - s, kv_heads), draw(rows + num_steps - 1 - s, kv_heads)) for s in range(num_steps)
    ]
    mask = torch.cat(
        [(torch.ones if step == 0 else torch.eye)(rows, rows).tril().bool() for step in range(num_steps)], 1
    )
    keys, values = (torch.cat([made[part][:, :rows] for made in seen], 1).transpose(1, 2) for part in (0, 1))
    expected = torch.nn.functional.scaled_dot_product_attention(
        queries.transpose(1, 2), keys, values, mask, enable_gqa=True
    )
    expected = expected.transpose(1, 2).flatten(2)
    found = attend(queries, seen, most_rows)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    given = [queries, *(part for made in seen for part in made)]
    weights = torch.randn(expected.shape, generator=generator)
    ours, theirs = (torch.autograd.grad((made * weights).sum(), given) for made in (found, expected))
    for one, two in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)


def test_every_weight_moves_and_states_are_given(tmp_path: Path) -> None:
    """Every weight moves, and later steps' errors reach the first step; the target's states are given."""
    model, embedding = load(write_eagle3(tmp_path / "head", eagle3_config(VOCAB_SIZE, HIDDEN_SIZE)))
    tokens, states = random_text(3)
    states.requires_grad_()
    logits = model(states, embedding[tokens], BLOCK)
    logits[-1].square().mean().backward()
    assert states.grad is None
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().max() > 0, name
