"""`--draft mtp` on the command line."""

import json
from pathlib import Path
from typing import Any

import pytest
from mtp_packages import write_mimo
from packages import quantize


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mtp")
    quantize(write_mimo(folder / "source"), folder / "package", codec="bsfp")
    prompts = ["import os\n\ndef ", "try:\n    import zlib\n"]
    (folder / "prompts.jsonl").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in prompts))
    return folder


@pytest.mark.parametrize("levels", ["target,bsfp", "bsfp"])
def test_generate_checks_it(run: Any, folder: Path, levels: str) -> None:
    words = ["--prompt", "import os", "--max-new-tokens", 16, "--levels", levels, "--draft", "mtp", "--check"]
    done = run("generate", folder / "package", *words)
    assert done.exit_code == 0, done.stderr
    assert "1 of 1 texts identical to plain decoding" in done.stdout


def test_verify_certifies_it(run: Any, folder: Path) -> None:
    words = ["--decode", folder / "prompts.jsonl", "--max-new-tokens", 16, "--temperature", 0.8, "--seed", 1]
    done = run("verify", folder / "package", "--draft", "mtp,num_draft_tokens=3", "--tree", 8, *words)
    assert done.exit_code == 0, done.stderr
    assert "0 token mismatches, 0 logit mismatches" in done.stdout


def test_cost_has_its_level(run: Any, folder: Path) -> None:
    assert run("quantize", folder / "source", "-o", folder / "with-level", "--draft", "mtp").exit_code == 0
    done = run("cost", folder / "with-level", "--hardware", "a100-80g")
    assert done.exit_code == 0, done.stderr
    assert "mtp (mxfp4)" in done.stdout
    assert "DeepSeek-V3 (arXiv 2412.19437), section 5.4.3" in done.stdout
