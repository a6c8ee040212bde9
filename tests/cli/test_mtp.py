"""`--draft mtp` on the command line."""

import json
from pathlib import Path

import pytest
from commands import run_mxconv
from mtp_packages import write_mimo


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mtp")
    write_mimo(folder / "source")
    done = run_mxconv("quantize", str(folder / "source"), "-o", str(folder / "package"), "--codec", "bsfp")
    assert done.returncode == 0, done.stderr
    prompts = ["import os\n\ndef ", "try:\n    import zlib\n"]
    (folder / "prompts.jsonl").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in prompts))
    return folder


@pytest.mark.parametrize("levels", ["target", "target,bsfp", "bsfp"])
def test_generate_checks_it(folder: Path, levels: str) -> None:
    words = ["--prompt", "import os", "--max-new-tokens", "16", "--levels", levels, "--draft", "mtp", "--check"]
    done = run_mxconv("generate", str(folder / "package"), *words)
    assert done.returncode == 0, done.stderr
    assert "1 of 1 texts identical to plain decoding" in done.stdout


def test_verify_certifies_it(folder: Path) -> None:
    words = ["--decode", str(folder / "prompts.jsonl"), "--max-new-tokens", "16", "--temperature", "0.8", "--seed", "1"]
    done = run_mxconv("verify", str(folder / "package"), "--draft", "mtp,num_draft_tokens=3", "--tree", "8", *words)
    assert done.returncode == 0, done.stderr
    assert "0 token mismatches, 0 logit mismatches" in done.stdout


def test_cost_has_its_level(folder: Path) -> None:
    done = run_mxconv("quantize", str(folder / "source"), "-o", str(folder / "with-level"), "--draft", "mtp")
    assert done.returncode == 0, done.stderr
    done = run_mxconv("cost", str(folder / "with-level"), "--hardware", "a100-80g")
    assert done.returncode == 0, done.stderr
    assert "mtp (mxfp4)" in done.stdout
    assert "DeepSeek-V3 (arXiv 2412.19437), section 5.4.3" in done.stdout
