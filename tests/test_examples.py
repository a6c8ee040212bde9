"""The examples and the README run as they are printed."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hub_server import HubServer

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
TARGET, DRAFT = EXAMPLES / "models" / "pylib-1.5m", EXAMPLES / "models" / "pylib-0.2m"


def run(*words: str | Path, **options: object) -> str:
    """Standard output of a Python process that must succeed."""
    done = subprocess.run(
        [sys.executable, *map(str, words)], check=False, capture_output=True, text=True, timeout=600, **options
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def readme_commands() -> list[str]:
    """The shell lines of the README's first screen that follow the installation."""
    block = re.search(r"```sh\n(mxconv .*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert block is not None
    return [line for line in block.group(1).splitlines() if line]


def test_the_readmes_lines_work_on_a_hub_id(tmp_path: Path) -> None:
    commands = readme_commands()
    assert len(commands) == 5
    ids = {word for command in commands for word in shlex.split(command) if re.fullmatch(r"[\w-]+/[\w.-]+", word)}
    assert len(ids) == 1
    with HubServer({ids.pop(): {"main": TARGET}}) as hub:
        for command in commands:
            words = shlex.split(command, comments=True)
            assert words[0] == "mxconv"
            run("-m", "mxconv.cli.main", *words[1:], env=hub.environment(tmp_path / "cache"), cwd=tmp_path)


def test_random_gaussian_matrices_reach_the_documented_draft_quality(tmp_path: Path) -> None:
    path = tmp_path / "matrices.safetensors"
    run(EXAMPLES / "make_matrices.py", path, "bf16", "256")
    lines = run("-m", "mxconv.cli.main", "inspect", path, "--json").splitlines()
    gaussian = [t for t in json.loads(lines[-1])["tensors"] if t["name"].startswith("gaussian-0")]
    assert len(gaussian) == 5
    for tensor in gaussian:
        assert tensor["bsfp_bits_per_weight"] <= 12.9
        assert tensor["bsfp_draft_sqnr_db"] >= max(19.4, tensor["mxfp4_sqnr_db"] + 0.4)


@pytest.mark.parametrize("model", [TARGET, DRAFT], ids=lambda path: path.name)
def test_the_fitted_draft_agrees_at_least_as_often_as_mxfp4(model: Path) -> None:
    lines = run(EXAMPLES / "compare_codecs.py", model, EXAMPLES / "prompts.jsonl", "prompt").splitlines()
    agreement = {line[:12].strip(): float(line.split()[-1]) for line in lines}
    assert agreement["bsfp fitted"] >= agreement["mxfp4"] - 0.01


def test_the_random_model_has_tinyllamas_shape_and_decodes(tmp_path: Path) -> None:
    model, package = tmp_path / "model", tmp_path / "package"
    run(EXAMPLES / "make_random_model.py", model, "16")
    config = json.loads((model / "config.json").read_text())
    assert (config["hidden_size"], config["intermediate_size"], config["vocab_size"]) == (128, 352, 2000)
    assert (model / "model.safetensors").stat().st_size > 2 * (2 * 2000 * 128 + 2 * 128 * 128 + 3 * 128 * 352)
    run("-m", "mxconv.cli.main", "quantize", model, "-o", package)
    out = run(
        "-m", "mxconv.cli.main", "generate", package, "--prompt", "Hello", "--max-new-tokens", "5", "--check", "--json"
    )
    result = json.loads(out.splitlines()[-1])["results"][0]
    assert len(result["token_ids"]) == 5
    assert result["identical_to_target"]
