"""The training loop on a real speculator: killed and gone on with, shared by two processes, refused in time."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import kill_after, run_mxconv
from safetensors.numpy import load_file, save_file
from trained_levels import TRAINED

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
