"""Training a SPIRe draft: its losses place by place, what each switch leaves out, and a draft that runs."""

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from commands import run_mxconv
from packages import quantize
from tiny_levels import by_hand, decoder_of, speculate
from trained_levels import TRAINED

from mxconv.drafts.loader import LoadedPackage
from mxconv.drafts.spire import config_for
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.train.spire_training import SpireLoss, SpireTask
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


def test_states_are_what_feeds_the_layers(target: FrozenTarget) -> None:
    ids = torch.from_numpy(IDS)
    states, logits = target.layers(ids, [0, 2])
    torch.testing.assert_close(states[0], target.model.model.embed_tokens(ids))
    torch.testing.assert_close(logits, target.logits(ids))
    position_embeddings = target.model.model.rotary_emb(states[1], torch.arange(21)[None])
    mask = torch.full((21, 21), -torch.inf).triu(1)[None, None]
    last = target.model.model.layers[2](states[1], attention_mask=mask, position_embeddings=position_embeddings)
    made = target.model.lm_head(target.model.model.norm(last))
    torch.testing.assert_close(made, logits, rtol=1e-4, atol=1e-4)


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
