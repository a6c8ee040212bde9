"""The training loop on a real speculator: killed and gone on with, shared by two processes, refused in time.

What a speculator computes and loses; a small model that is distilled.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import kill_after, run_mxconv
from packages import quantize
from reader_levels import open_reader
from safetensors.numpy import load_file, save_file
from speculators import speculator_config
from tiny_levels import by_hand, decoder_of, speculate
from trained_levels import TRAINED

from mxconv.drafts.loader import LoadedPackage
from mxconv.drafts.speculator import SpeculatorConfig
from mxconv.errors import ModelError
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.train.speculator_training import SpeculatorTask
from mxconv.train.training_task import FrozenTarget
from mxconv.train.windows import Windows

STEPS = 12
LAUNCHER = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def command(folder: Path, name: str, *more: str) -> list[str]:
    """`mxconv train speculator` with two stages."""
    options = ("--target", TRAINED, "-o", folder / name, "--generated", folder / "own.jsonl", "--length", "32")
    sizes = ("--batch-tokens", "128", "--inner-dim", "16", "--steps", str(STEPS), "--save-every", "3")
    return [str(word) for word in ("train", "speculator", folder / "texts.txt", *options, *sizes, *more)]


def losses(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "losses.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def folder(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts, the target's own, and a speculator that was trained in one go."""
    folder = tmp_path_factory.mktemp("fit")
    for name in ("texts.txt", "own.jsonl"):
        shutil.copy(texts / name, folder / name)
    made = run_mxconv(*command(folder, "whole", "--json"))
    assert made.returncode == 0, made.stderr
    result = json.loads(made.stdout.splitlines()[-1])
    assert result["num_steps"] == STEPS and set(result["losses"]) == {"head 1", "head 2", "head 3"}
    return folder


def test_it_learns_in_two_stages(folder: Path) -> None:
    lines = losses(folder / "whole")
    assert [line["step"] for line in lines] == list(range(STEPS))
    assert [line["stage"] for line in lines] == ["text"] * 9 + ["own text"] * 3
    assert lines[8]["loss"] < lines[0]["loss"] - 0.05
    assert all(line["loss"] == pytest.approx(np.mean(list(line["parts"].values()))) for line in lines)
    assert (folder / "whole" / "losses.svg").read_text().startswith("<?xml")
    assert not (folder / "whole.training").exists()
    modes = {path.stat().st_mode for path in (folder / "whole").iterdir()}
    assert len(modes) == 1  # whoever may read one file may read all


def test_killed_and_gone_on_with_it_is_the_same_training(folder: Path, tmp_path: Path) -> None:
    """With the same options and weights, also under torchrun; not with a model that is another than it learned from."""
    kill_after(5, folder / "killed.training" / "losses.jsonl", command(folder, "killed"))
    assert not (folder / "killed").exists()
    assert (folder / "killed.training" / "state.safetensors").is_file()
    shutil.copytree(folder / "killed.training", folder / "handed.training")
    shutil.copytree(TRAINED, tmp_path / "target")
    weights = load_file(TRAINED / "model.safetensors")
    weights["model.norm.weight"] *= 2
    save_file(weights, tmp_path / "target" / "model.safetensors")
    for change in (("--seed", "1"), ("--target", str(tmp_path / "target"))):
        other = run_mxconv(*command(folder, "killed", *change))
        assert other.returncode == 1
        assert "the state of another training; one with the same target, texts and options is required" in other.stderr
    again = run_mxconv(*command(folder, "killed"))
    assert again.returncode == 0, again.stderr
    assert losses(folder / "killed") == losses(folder / "whole")
    whole, killed = (folder / name / "model.safetensors" for name in ("whole", "killed"))
    assert killed.read_bytes() == whole.read_bytes()
    made = run_mxconv(*command(folder, "handed"), launcher=LAUNCHER)  # two processes, on loopback, over gloo
    assert made.returncode == 0, made.stderr
    assert made.stdout.count("trained in") == 1
    for one, two in zip(losses(folder / "whole"), losses(folder / "handed"), strict=True):
        assert two["parts"] == pytest.approx(one["parts"], abs=1e-4)


def test_a_dry_run_trains_nothing(folder: Path) -> None:
    made = run_mxconv(*command(folder, "dry", "--dry-run", "--json"))
    result = json.loads(made.stdout.splitlines()[-1])
    # 3 embeddings and heads of 1024 x 16, projections from 64 and twice from 16, scales and shifts
    assert result["num_parameters"] == 6 * 1024 * 16 + 16 * (64 + 16 + 16) + 3 * 2 * 16
    assert (result["num_steps"], result["num_tokens"], result["dry_run"]) == (STEPS, STEPS * 128, True)
    assert not list(folder.glob("dry*"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("--length", "8", "--heads", "8"), "--length 8: 10, what this draft needs, to 512, the target's positions"),
        (("--target", "nowhere"), "nowhere/config.json"),
        (("--generated", "texts.txt"), "texts.txt: line 1"),
        (("--heads", "24"), "texts of 32 tokens, 24 of them new; at most 512, and 26 new ones are required"),
    ],
)
def test_what_is_refused_before_anything_is_trained(folder: Path, change: tuple[str, str], message: str) -> None:
    change = tuple(str(folder / word) if word == "texts.txt" else word for word in change)  # type: ignore[assignment]
    made = run_mxconv(*command(folder, "refused"), *change)
    assert made.returncode == 1
    assert message in made.stderr.replace("\n", " ")
    assert len(made.stderr.strip().splitlines()) <= 3 and "Traceback" not in made.stderr
    assert not list(folder.glob("refused*"))


def test_nothing_is_overwritten(folder: Path) -> None:
    made = run_mxconv(*command(folder, "whole"))
    assert made.returncode == 1 and "exists; nothing is overwritten" in made.stderr


# ---- the speculator ----

RNG = np.random.default_rng(0)
IDS = RNG.integers(0, 1024, (3, 20))


def config(tied: bool = False, scaled: bool = False, n_predict: int = 3) -> SpeculatorConfig:
    values = speculator_config(64, 1024, {"tie_weights": tied, "scale_input": scaled, "n_predict": n_predict})
    del values["architectures"], values["model_type"]
    return SpeculatorConfig(**values | {"top_k_tokens_per_head": (4, 3, 2, 2, 2)[:n_predict]})


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_what_is_written_runs_as_it_was_trained(tied: bool, scaled: bool, target: FrozenTarget, tmp_path: Path) -> None:
    torch.manual_seed(0)
    task = SpeculatorTask(config(tied, scaled), target, torch.float16)
    model = task.model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) / 8).copy_(parameter.half().float())
    task.write(dict(model.state_dict()), tmp_path)
    ids = torch.from_numpy(IDS)
    states = target.states(ids)
    with torch.no_grad():
        logits = model(states, ids)
    speculator = open_reader("speculator", tmp_path)
    assert speculator.config == task.config
    for row, place in ((0, 0), (2, 7), (1, logits[0].shape[1] - 1)):
        made = speculator.begin(states[row, place].numpy()[None])
        for stage in range(3):
            made = speculator.advance(stage, made, [int(IDS[row, place + 1 + stage])])
            found = speculator.logits(stage, made)[0]
            np.testing.assert_allclose(found, logits[stage][row, place].numpy(), rtol=1e-4, atol=1e-4)


def test_losses_are_cross_entropies_of_the_tokens_that_each_head_chooses(target: FrozenTarget) -> None:
    torch.manual_seed(1)
    task = SpeculatorTask(config(), target, torch.float16)
    model, ids = task.model(), torch.from_numpy(IDS)
    states = target.states(ids)
    for num_prompt in (0, 8):
        losses = task.losses(model, ids, Windows(IDS.astype(np.int32), num_prompt))
        for stage, logits in enumerate(model(states, ids)):
            assert logits.shape[1] == 20 - 1 - 3
            chosen = [
                -logits[row, place].log_softmax(-1)[ids[row, place + 2 + stage]]
                for row in range(3)
                for place in range(logits.shape[1])
                if place + 2 >= num_prompt
            ]
            torch.testing.assert_close(losses[stage], torch.stack(chosen).mean())


def test_a_target_without_weights_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((TRAINED / "config.json").read_text())
    with pytest.raises(ModelError, match=r"no \.safetensors file; a target with its weights is required"):
        FrozenTarget(tmp_path, torch.device("cpu"))


# ---- a small model ----


def test_a_trained_draft_is_a_model_like_any_other(texts: Path, tmp_path: Path) -> None:
    sizes = ("--hidden-size", "32", "--layers", "1", "--heads", "2", "--length", "32", "--batch-tokens", "128")
    for loss in ("kl", "tvd++", "text"):
        paths = (texts / "texts.txt", "--target", TRAINED, "-o", tmp_path / loss)
        made = run_mxconv("train", "draft", *map(str, paths), *sizes, "--steps", "3", "--loss", loss)
        assert made.returncode == 0, made.stderr
    config, theirs = (json.loads((folder / "config.json").read_text()) for folder in (tmp_path / "kl", TRAINED))
    for key in ("bos_token_id", "eos_token_id"):
        assert config[key] == theirs[key]
    weights = [(tmp_path / loss / "model.safetensors").read_bytes() for loss in ("kl", "tvd++", "text")]
    assert len(set(weights)) == 3  # each loss trains another draft
    quantize(TRAINED, tmp_path / "package", drafts=(f"checkpoint:{tmp_path / 'kl'}",))
    with LoadedPackage(tmp_path / "package", ["target", "kl"]) as loaded:
        ids = loaded.tokenizer.encode("def read(self")
        found, generation = speculate(Hierarchy(loaded.levels, [2], [0.0]), ids, 12)
        assert found == by_hand(decoder_of(loaded.levels[0]), ids, 12)
        assert generation.trace.statistics[1].num_proposed > 0
