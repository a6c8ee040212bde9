"""`mxconv tune`: what it prints, what it writes, and that decoding then does as it says."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from checkpoints import write_tiny_llama
from packages import quantize

pytest.importorskip("mxconv.kernels._native", reason="the extension is not built on this machine")

from mxconv.package.manifest import read_manifest

KEYS = {
    "levels", "num_draft_tokens", "confidence", "speedup", "num_prompts", "num_tokens", "cpu", "threads", "kernel",
    "seconds", "written", "candidates", "machine",
}  # fmt: skip


@pytest.fixture
def own(package: Path, tmp_path: Path) -> Path:
    """A copy to write into."""
    return Path(shutil.copytree(package, tmp_path / "own"))


def test_the_winner_is_written_and_used_where_no_levels_are_given(run: Any, own: Path, prompts: Path) -> None:
    outcome = run("tune", own, "--prompts", prompts, "--max-new-tokens", 6, "--budget", 1, "--threads", 1, "--json")
    assert outcome.exit_code == 0, outcome.stderr
    members = outcome.json
    assert set(members) == KEYS
    assert members["written"] is True
    tuned = read_manifest(own).tuned
    assert tuned is not None
    assert {key: members[key] for key in tuned.model_dump()} == tuned.model_dump()
    assert members["levels"][0] == "target" and members["threads"] == 1
    assert all(candidate["levels"][0] == "target" for candidate in members["candidates"])
    assert "written: decoding uses this where no --levels are given" in outcome.stderr
    used = run("generate", own, "--prompt", "Once", "--max-new-tokens", 4, "--json").json["results"][0]["levels"]
    assert [level["name"] for level in used] == tuned.levels
    named = run("generate", own, "--prompt", "Once", "--levels", "target,small", "--max-new-tokens", 4, "--json")
    assert [level["name"] for level in named.json["results"][0]["levels"]] == ["target", "small"]
    assert run("verify", own).exit_code == 0


def test_a_dry_run_writes_nothing_and_may_try_other_drafts(run: Any, own: Path, prompts: Path) -> None:
    before = (own / "mxconv.json").read_bytes()
    arguments = ("tune", "levels", own, "--prompts", prompts, "--max-new-tokens", 4, "--budget", 0.5)
    outcome = run(*arguments, "--levels", "target,small", "--draft", "prompt-lookup", "--dry-run", "--json")
    assert outcome.exit_code == 0, outcome.stderr
    assert (own / "mxconv.json").read_bytes() == before
    assert outcome.json["written"] is False
    names = {name for candidate in outcome.json["candidates"] for name in candidate["levels"]}
    assert names == {"target", "small", "prompt-lookup"}
    assert "nothing was written (--dry-run)" in outcome.stderr
    refused = run(*arguments, "--draft", "prompt-lookup")
    assert refused.exit_code == 2
    assert "--dry-run is required" in " ".join(refused.stderr.split())


def test_options_may_stand_before_the_package(run: Any, own: Path, prompts: Path) -> None:
    arguments = ("--budget", 0, "--max-new-tokens", 2, "--dry-run", own)
    assert run("tune", "--prompts", prompts, *arguments).exit_code == 0


def test_help_explains_both_commands(run: Any) -> None:
    outcome = run("tune", "--help")
    text = " ".join(outcome.stdout.split())
    assert "`mxconv tune PACKAGE` is short for `mxconv tune levels PACKAGE`" in text
    assert "layer-skip" in text
    assert "--budget" in run("tune", "levels", "--help").stdout
    assert "--evaluations" in run("tune", "layer-skip", "--help").stdout


def test_a_folder_that_is_no_package_says_so(run: Any, tmp_path: Path, prompts: Path) -> None:
    outcome = run("tune", tmp_path / "nothing", "--prompts", prompts)
    assert outcome.exit_code == 1
    assert "no such file" in outcome.stderr


@pytest.mark.parametrize(("command", "flag"), [("levels", ()), ("layer-skip", ("--write",))])
def test_a_package_on_the_hub_is_not_written_to(run: Any, prompts: Path, command: str, flag: tuple[str, ...]) -> None:
    outcome = run("tune", command, "someone/something", "--prompts", prompts, *flag)
    assert outcome.exit_code == 1
    assert "someone/something: a package on the Hub" in outcome.stderr
    assert "mxconv pull someone/something -o FOLDER" in outcome.stderr


@pytest.fixture
def deep(tmp_path: Path) -> Path:
    """Four layers, so that there are some to skip."""
    source = write_tiny_llama(tmp_path / "source", num_hidden_layers=4)
    quantize(source, tmp_path / "deep")
    return tmp_path / "deep"


def test_layer_skip_prints_what_draft_takes(run: Any, deep: Path, prompts: Path) -> None:
    arguments = ("tune", "layer-skip", deep, "--prompts", prompts, "--max-new-tokens", 8, "--evaluations", 6)
    outcome = run(*arguments, "--json")
    assert outcome.exit_code == 0, outcome.stderr
    members = outcome.json
    assert set(members) == {
        "layers", "predicted_speedup", "num_draft_tokens", "num_evaluations", "written", "trail",
    }  # fmt: skip
    assert (members["num_evaluations"], members["written"]) == (6, False)
    assert members["predicted_speedup"] == max(trial["predicted_speedup"] for trial in members["trail"])
    assert f"--draft layer-skip:{members['layers']}" in outcome.stderr


def test_layer_skip_becomes_a_level_where_it_pays(
    run: Any, deep: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("tune", "layer-skip", deep, "--prompts", prompts, "--evaluations", 5, "--write")
    monkeypatch.setattr("mxconv.tuning.layers.layer_skip_speedup", lambda *_: lambda skipped: 1.0 - len(skipped))
    outcome = run(*arguments)
    assert "no set pays" in outcome.stdout
    assert [level.name for level in read_manifest(deep).levels] == ["target", "mxfp4"]
    monkeypatch.setattr("mxconv.tuning.layers.layer_skip_speedup", lambda *_: lambda skipped: 1.0 + len(skipped))
    outcome = run(*arguments, "--num-draft-tokens", 3, "--json")
    assert outcome.json["written"] is True
    level = read_manifest(deep).levels[1]
    assert (level.name, level.skipped, level.num_draft_tokens) == ("layer-skip", outcome.json["layers"], 3)
    refused = run(*arguments)
    assert refused.exit_code == 1
    assert "nothing is overwritten" in refused.stderr
    assert run(*arguments, "--force").exit_code == 0
    checked = run("generate", deep, "--prompt", "Once", "--max-new-tokens", 6, "--check", "--json")
    assert json.loads(checked.stdout.splitlines()[-1])["results"][0]["identical_to_target"] is True
