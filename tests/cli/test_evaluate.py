"""`mxconv evaluate`: the JSON contract, options that contradict each other, the manifest, the picture."""

import hashlib
import shutil
from pathlib import Path
from typing import Any

import pytest
from packages import forge

from mxconv.package.manifest import read_manifest

LEVEL_KEYS = {
    "name", "perplexity", "perplexity_error", "mean_kl", "mean_kl_error", "p99_kl", "agreement", "agreement_error",
}  # fmt: skip
FEW = ("--context", 16, "--tokens", 64)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("The quick brown fox jumps over the lazy dog. " * 8)
    return path


@pytest.fixture
def copy(package: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(package, tmp_path / "copy"))


def test_the_last_line_of_stdout_is_the_contracts_object(run: Any, package: Path, text: Path) -> None:
    outcome = run("evaluate", package, "--texts", text, *FEW, "--json")
    assert outcome.exit_code == 0, outcome.stderr
    assert len(outcome.stdout.splitlines()) == 1
    found = outcome.json
    assert [level["name"] for level in found["levels"]] == ["target", "mxfp4", "small"]
    assert all(set(level) == LEVEL_KEYS for level in found["levels"])
    assert (found["num_texts"], found["num_tokens"], found["context"]) == (4, 28, 16)
    assert (found["parts"], found["left_out"]) == ([], [])
    target, draft, small = found["levels"]
    assert (target["mean_kl"], target["agreement"]) == (0, 1)
    assert 0 < draft["mean_kl"] < small["mean_kl"]
    assert "28 tokens of 4 windows by" in outcome.stderr and f"{draft['mean_kl']:.5f} ± " in outcome.stderr


def test_parts_are_listed_and_drawn(run: Any, package: Path, text: Path, tmp_path: Path) -> None:
    plot = tmp_path / "parts.svg"
    outcome = run("evaluate", package, "--texts", text, *FEW, "--by-layer", "--plot", plot, "--json")
    parts = [part["name"] for part in outcome.json["parts"]]
    assert sorted(parts) == ["lm_head", "model.layers.0.mlp", "model.layers.0.self_attn"]
    assert f"wrote {plot}" in outcome.stderr
    drawn = plot.read_text()
    assert drawn.startswith("<?xml") and all(f"<!-- {part} -->" in drawn for part in parts)
    again = run("evaluate", package, "--texts", text, "--by-layer", "--plot", plot)
    assert again.exit_code == 1 and "--force" in again.stderr


def test_the_manifest_keeps_the_figures_and_a_proof_keeps_them_too(run: Any, copy: Path, text: Path) -> None:
    before = read_manifest(copy)
    found = run("evaluate", copy, "--texts", text, *FEW, "--write", "--json").json
    assert run("verify", copy, "--write").exit_code == 0
    after = read_manifest(copy)
    assert before.evaluation is None and after.evaluation is not None and after.certificate is not None
    assert after.evaluation.model_dump() == {key: found[key] for key in after.evaluation.model_dump()}
    assert after.evaluation.sha256 == hashlib.sha256(text.read_bytes()).hexdigest()
    assert after.model_copy(update={"evaluation": None, "certificate": None}).to_bytes() == before.to_bytes()


def test_a_package_without_a_4_bit_copy_has_no_parts(run: Any, copy: Path, text: Path) -> None:
    forge(copy, lambda members: members["levels"].pop(1))
    outcome = run("evaluate", copy, "--texts", text, *FEW, "--by-layer")
    assert outcome.exit_code == 1
    assert "no 4-bit copy among its levels; parts of one are compared. Leave out --by-layer." in outcome.stderr
