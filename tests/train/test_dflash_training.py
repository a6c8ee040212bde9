"""Training a DFlash head: its losses row by row, where blocks begin, what it begins with and writes, what it drafts."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from commands import kill_after, run_mxconv
from packages import quantize
from tiny_levels import by_hand, decoder_of, speculate
from trained_levels import EMBEDDING, PROMPTS, TRAINED

from mxconv.arrays import F32
from mxconv.drafts.dflash import Dflash, DflashDraft
from mxconv.drafts.loader import LoadedPackage
from mxconv.drafts.readers.dflash_config import DflashConfig, config_for
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.train.dflash_training import DflashModel, DflashTask
from mxconv.train.training_task import FrozenTarget
from mxconv.train.windows import Windows

VALUES: dict[str, Any] = json.loads((TRAINED / "config.json").read_text())
IDS = np.random.default_rng(0).integers(0, 1024, (2, 21))
KNOWN = np.sort(np.random.default_rng(1).permutation(1024)[:300])
BLOCK, STEPS, MASK = 4, 40, 5
PROMPT = "def read(self"


def task_of(target: FrozenTarget, spacing: int = 1, tokens: np.ndarray = KNOWN) -> DflashTask:
    values = config_for(VALUES, (2, 1, 0), 2, BLOCK, len(tokens), MASK)
    return DflashTask(values, target, tokens, spacing, torch.bfloat16)


def command(folder: Path, name: str, *more: str) -> list[str]:
    options = ("--target", TRAINED, "-o", folder / name, "--generated", folder / "own.jsonl", "--length", "32")
    sizes = ("--batch-tokens", "128", "--steps", STEPS, "--learning-rate", "3e-3", "--block", BLOCK)
    return [str(word) for word in ("train", "dflash", folder / "texts.txt", *options, *sizes, *more)]


@pytest.fixture(scope="module")
def folder(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A head trained for a few steps in two stages, and packages of its target without and with it."""
    folder = tmp_path_factory.mktemp("dflash")
    for name in ("texts.txt", "own.jsonl"):
        shutil.copy(texts / name, folder / name)
    made = run_mxconv(*command(folder, "head", "--draft-vocab-size", "200", "--json"))
    assert made.returncode == 0, made.stderr
    result = json.loads(made.stdout.splitlines()[-1])
    assert set(result["losses"]) == {f"token {place}" for place in range(1, BLOCK)}
    quantize(TRAINED, folder / "package", drafts=(f"dflash:{folder / 'head'}",))
    return folder


@pytest.mark.parametrize("num_prompt", [0, 6])
@pytest.mark.parametrize("tokens", [KNOWN, np.arange(1024)], ids=["some tokens", "all"])
def test_losses_are_those_of_each_row_of_a_block(num_prompt: int, tokens: np.ndarray, target: FrozenTarget) -> None:
    """Against the target's softmax, cut to the tokens that are known, after all places where a block can begin."""
    torch.manual_seed(0)
    task = task_of(target, tokens=tokens)
    model, ids = task.model(), torch.from_numpy(IDS)
    anchors = torch.arange(max(num_prompt - 1, 1), 21 - BLOCK + 2)
    rows = torch.full((2, len(anchors), BLOCK), MASK)
    rows[..., 0] = ids[:, anchors]
    with torch.no_grad():
        found = task.losses(model, ids, Windows(IDS.astype(np.int32), num_prompt))
        layers = target.model(ids, output_hidden_states=True)
        states = torch.stack([layers.hidden_states[layer] for layer in (2, 1, 0)])
        logits = model(states, target.model.model.embed_tokens(rows), anchors, target.model.lm_head.weight)
    theirs = layers.logits.double().numpy()
    for step in range(BLOCK - 1):
        losses = []
        for row in range(2):
            for place, anchor in enumerate(anchors.tolist()):
                shares = np.exp(theirs[row, anchor + step])
                shares = shares[tokens] / shares[tokens].sum()
                ours = logits[row, place, step].double().numpy()
                losses.append(-(shares * (ours - np.log(np.exp(ours).sum()))).sum())
        assert float(found[step]) == pytest.approx(np.mean(losses), rel=1e-5)


def test_gradients_fall_along_a_block_and_losses_do_not(target: FrozenTarget) -> None:
    """By e**(-1 / gamma) a row, with a gamma of half the block; on average they are those of the mean."""
    task = task_of(target)
    model, windows = task.model(), Windows(IDS.astype(np.int32))
    found = task.losses(model, torch.from_numpy(IDS), windows)
    norms = []
    for loss in found:
        (made,) = torch.autograd.grad(loss, [model.norm.weight], retain_graph=True)
        norms.append(made)
    task._shares = torch.ones(BLOCK - 1)
    plain = task.losses(model, torch.from_numpy(IDS), windows)
    torch.testing.assert_close(plain, found)
    wanted = np.exp(-np.arange(BLOCK - 1) / 2)
    for loss, norm, share in zip(plain, norms, wanted / wanted.mean(), strict=True):
        (made,) = torch.autograd.grad(loss, [model.norm.weight], retain_graph=True)
        torch.testing.assert_close(norm, float(share) * made)


def test_blocks_begin_at_random_places_of_the_targets_own_text(target: FrozenTarget) -> None:
    """As many as the spacing says, never two at one; others in another step, and the same for the same seed."""
    seen: list[torch.Tensor] = []
    task = task_of(target, spacing=4)
    model = task.model()
    model.register_forward_pre_hook(lambda module, given: seen.append(given[2]))
    for seed in (*range(30), 0):
        torch.manual_seed(seed)
        task.losses(model, torch.from_numpy(IDS), Windows(IDS.astype(np.int32), 7))
    places = range(6, 21 - BLOCK + 2)  # from the prompt's last token on
    assert {len(anchors) for anchors in seen} == {len(places) // 4}
    assert all((anchors.diff() > 0).all() for anchors in seen)
    assert set(torch.cat(seen).tolist()) == set(places)
    assert torch.equal(seen[0], seen[-1]) and not all(torch.equal(seen[0], anchors) for anchors in seen)


def test_it_begins_with_the_targets_last_layers(target: FrozenTarget) -> None:
    theirs, state = target.model.state_dict(), task_of(target).model().state_dict()
    torch.testing.assert_close(state["norm.weight"], theirs["model.norm.weight"])
    torch.testing.assert_close(state["lm_head.weight"], theirs[EMBEDDING][torch.from_numpy(KNOWN)])  # tied
    last = f"model.layers.{VALUES['num_hidden_layers'] - 1}.input_layernorm.weight"
    torch.testing.assert_close(state["hidden_norm.weight"], theirs[last])
    names = [
        name for name in state if name.startswith("layers.") and not name.endswith(("q_norm.weight", "k_norm.weight"))
    ]
    assert len(names) == 18
    for name in names:
        index = VALUES["num_hidden_layers"] - 2 + int(name[7])
        torch.testing.assert_close(state[name], theirs[f"model.layers.{index}{name[8:]}"])
    size = VALUES["hidden_size"]
    deepest_first = torch.cat([torch.eye(size), torch.zeros(size, 2 * size)], 1)  # it reads states 2, 1 and 0
    torch.testing.assert_close(state["fc.weight"], deepest_first)
    assert "embed_tokens.weight" not in state
    assert "lm_head.weight" not in task_of(target, tokens=np.arange(1024)).model().state_dict()


def test_it_learns_within_forty_steps(folder: Path) -> None:
    lines = [json.loads(line) for line in (folder / "head" / "losses.jsonl").read_text().splitlines()]
    last = [line["stage"] for line in lines].count("text") - 1
    assert 15 < last < STEPS - 1 == len(lines) - 1
    for name in lines[0]["parts"]:
        assert lines[last]["parts"][name] < lines[0]["parts"][name] - 1, name


def test_what_is_written_knows_the_most_frequent_tokens_and_masks_with_the_rarest(folder: Path) -> None:
    tensors = safetensors.torch.load_file(folder / "head" / "model.safetensors")
    assert {tensor.dtype for name, tensor in tensors.items() if name not in ("d2t", "t2d")} == {torch.bfloat16}
    with LoadedPackage(folder / "package", ["target"]) as loaded:
        text = loaded.tokenizer.encode((folder / "texts.txt").read_text())
    ids = [*text[: len(text) // 32 * 32]]
    for line in (folder / "own.jsonl").read_text().splitlines():
        ids += json.loads(line)["token_ids"]
    counts = {token: ids.count(token) for token in range(1024)}
    expected = sorted(sorted(counts, key=lambda token: (-counts[token], token))[:200])
    assert (tensors["d2t"] + torch.arange(200)).tolist() == expected
    assert torch.nonzero(tensors["t2d"]).flatten().tolist() == expected
    config = DflashConfig.from_file(folder / "head" / "config.json")
    assert config.mask_token_id == min(counts, key=counts.__getitem__)
    assert (config.block_size, config.num_layers, config.layer_ids) == (BLOCK, 2, (2, 1, 0))


def test_the_blocks_at_run_time_are_those_of_training(
    folder: Path, target: FrozenTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the engine decodes, in NumPy: native kernels may round activations, and transformers here does not."""
    said: list[tuple[list[int], F32]] = []  # the context, and the logits of all rows that choose
    begin = DflashDraft.begin

    def first(self: DflashDraft, context: Sequence[int]) -> F32:
        logits = begin(self, context)
        said.append(([*context], self._logits.copy()))
        return logits

    monkeypatch.setattr(DflashDraft, "begin", first)
    with LoadedPackage(folder / "package", ["target", "head"], kernel="numpy") as loaded:
        num_accepted = 0
        for prompt in PROMPTS:
            ids = loaded.tokenizer.encode(prompt)
            found, generation = speculate(Hierarchy(loaded.levels, [BLOCK - 1], [0.0], "chain"), ids, 24)
            assert found == by_hand(decoder_of(loaded.levels[0]), ids, 24)
            num_accepted += generation.trace.statistics[1].num_accepted
        assert num_accepted > 0
        assert isinstance(loaded.levels[1].reader, Dflash)
    config = DflashConfig.from_file(folder / "head" / "config.json")
    assert config.layer_ids is not None
    model = DflashModel(config)
    stored = safetensors.torch.load_file(folder / "head" / "model.safetensors")
    model.load_state_dict({name: made.float() for name, made in stored.items() if name not in ("d2t", "t2d")})
    assert len(said) > len(PROMPTS)
    for text, rows in said:
        states, _ = target.layers(torch.tensor([text]), config.layer_ids)
        ids = torch.full((1, 1, BLOCK), config.mask_token_id)
        ids[..., 0] = text[-1]
        with torch.no_grad():
            logits = model(states, target.model.model.embed_tokens(ids), torch.tensor([len(text) - 1]))[0, 0]
        np.testing.assert_allclose(rows, logits[: len(rows)], rtol=1e-4, atol=1e-4)


def test_what_is_written_generates_the_targets_text(folder: Path) -> None:
    """Converted to 4 bits, and with a vocabulary that is all of the target's, whose output head it uses."""
    made = run_mxconv("quantize", str(folder / "head"), "-o", str(folder / "head-4bit"))
    assert made.returncode == 0, made.stderr
    made = run_mxconv(*command(folder, "whole", "--steps", "2", "--layers", "1", "--block", "2"))
    assert made.returncode == 0, made.stderr
    tensors = safetensors.torch.load_file(folder / "whole" / "model.safetensors")
    assert not tensors.keys() & {"lm_head.weight", "d2t", "t2d", "embed_tokens.weight"}
    for head in ("head-4bit", "whole"):
        words = ("--prompt", PROMPT, "--levels", "target", "--draft", f"dflash:{folder / head}", "--check")
        made = run_mxconv("generate", str(folder / "package"), *words, "--max-new-tokens", "16")
        assert made.returncode == 0, made.stderr
        assert "1 of 1 texts identical to plain decoding" in made.stdout


def test_killed_and_gone_on_with_it_draws_the_same_places(folder: Path) -> None:
    """In one process byte for byte, and in two up to rounding."""
    more = ("--draft-vocab-size", "200", "--save-every", "3")
    kill_after(5, folder / "killed.training" / "losses.jsonl", command(folder, "killed", *more))
    assert not (folder / "killed").exists()
    shutil.copytree(folder / "killed.training", folder / "handed.training")
    made = run_mxconv(*command(folder, "killed", *more))
    assert made.returncode == 0, made.stderr
    for name in ("losses.jsonl", "model.safetensors"):
        assert (folder / "killed" / name).read_bytes() == (folder / "head" / name).read_bytes()
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    made = run_mxconv(*command(folder, "handed", *more), launcher=launcher)
    assert made.returncode == 0, made.stderr
    whole, handed = ((folder / name / "losses.jsonl").read_text().splitlines() for name in ("head", "handed"))
    for one, two in zip(map(json.loads, whole), map(json.loads, handed), strict=True):
        assert two["parts"] == pytest.approx(one["parts"], abs=1e-3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("--draft-vocab-size", "1025"), "--draft-vocab-size 1025: the target has 1024 tokens; at most so many are"),
        (("--length", "8", "--block", "9"), "--length 8: 9, what this draft needs, to 512, the target's positions"),
        (("--layers", "4"), "--layers 4: the target has 3; at most so many are required"),
    ],
)
def test_what_is_refused_before_anything_is_trained(folder: Path, change: tuple[str, str], message: str) -> None:
    made = run_mxconv(*command(folder, "refused"), *change)
    assert made.returncode == 1 and message in made.stderr.replace("\n", " ")
    assert not list(folder.glob("refused*"))


def test_a_dry_run_counts_the_weights(folder: Path, target: FrozenTarget) -> None:
    made = run_mxconv(*command(folder, "dry", "--draft-vocab-size", "100", "--spacing", "3", "--dry-run", "--json"))
    result = json.loads(made.stdout.splitlines()[-1])
    size, inner, head = VALUES["hidden_size"], VALUES["intermediate_size"], VALUES["head_dim"]
    kv_size, q_size = VALUES["num_key_value_heads"] * head, VALUES["num_attention_heads"] * head
    layer = size * (2 * q_size + 2 * kv_size) + 3 * size * inner + 2 * size + 2 * head
    fusion = 3 * size * size
    rest = 2 * layer + 2 * size + 100 * size
    assert result["num_parameters"] == fusion + rest
    a_token = 6.0 * (BLOCK / 3 * rest + fusion) + 2.0 * target.num_parameters
    assert result["flops"] == pytest.approx(a_token * STEPS * 128)
    assert not list(folder.glob("dry*"))
