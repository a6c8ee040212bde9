"""Levels on the command line: `--levels` that begins with another one, `--kv-dtype` of caches, `--draft mtp`."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from mtp_packages import write_mimo
from packages import quantize
from plug_ins import RECYCLING

from mxconv.engine.cache import KVCache
from mxconv.kernels.engine import native_names
from mxconv.package.manifest import read_manifest

FOUR_BITS = ["--levels", "mxfp4,small"]
needs_native = pytest.mark.skipif(not native_names(), reason="the extension is not built on this machine")


def test_generate_decodes_the_4_bit_level_and_says_so(run: Any, package: Path, prompts: Path) -> None:
    arguments = ["generate", package, "--prompts", prompts, "--max-new-tokens", 12, "--json"]
    outcome = run(*arguments, *FOUR_BITS, "--draft", RECYCLING, "--check")
    assert outcome.exit_code == 0, outcome.stderr
    assert outcome.json["target"] == "mxfp4"
    assert "3 of 3 texts identical to plain decoding of mxfp4 (" in outcome.stderr
    for result in outcome.json["results"]:
        assert result["identical_to_target"]
        assert [level["name"] for level in result["levels"]] == ["mxfp4", "small", "token-recycling"]
    texts = [
        [r["token_ids"] for r in run(*arguments, "--levels", name).json["results"]] for name in ("mxfp4", "target")
    ]
    assert texts[0] == [result["token_ids"] for result in outcome.json["results"]]
    assert texts[0] != texts[1]


def test_python_takes_any_level_first(package: Path) -> None:
    import mxconv

    with mxconv.load(package, levels=["mxfp4", "small"], drafts=["prompt-lookup"]) as model:
        answer = model.generate("Once upon", max_new_tokens=12, num_draft_tokens="auto")
        assert answer.token_ids == model.generate("Once upon", max_new_tokens=12, drafts=[]).token_ids
        assert [level.name for level in answer.generation.trace.statistics] == ["mxfp4", "small", "prompt-lookup"]
    with mxconv.load(package, levels=["mxfp4"]) as model:
        assert model.generate("Once upon", max_new_tokens=12).token_ids == answer.token_ids


def test_the_certificate_is_one_of_the_level_that_was_decoded(
    run: Any, package: Path, prompts: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(package, tmp_path / "copy"))
    arguments = ["verify", copy, "--decode", prompts, "--max-new-tokens", 8, "--write", "--json"]
    for more, level in ((FOUR_BITS, "mxfp4"), ([], "target")):
        outcome = run(*arguments, *more)
        assert outcome.exit_code == 0, outcome.stderr
        assert outcome.json["decode"]["target"] == level
        assert f"of 3 prompts decoded by {level}, with drafts and without: 0 token mismatches" in outcome.stderr
        assert read_manifest(copy).decoded_level == level
        notes = run("inspect", copy, "--json").json["notes"]
        assert f"of 3 prompts decoded by {level} with drafts and without, 0 tokens and 0 " in notes[1]


@needs_native
def test_bench_decode_measures_any_target(run: Any, package: Path, prompts: Path, tmp_path: Path) -> None:
    arguments = ["bench", "decode", package, "--prompts", prompts, "--max-new-tokens", 6, "--threads", 1]
    outcome = run(*arguments, *FOUR_BITS, "--plot", tmp_path / "pictures", "--json")
    assert outcome.exit_code == 0, outcome.stderr
    assert outcome.json["target"] == "mxfp4"
    assert [row["strategy"] for row in outcome.json["results"]] == ["greedy", "small", "small (trees)", "auto"]
    assert all(row["identical_to_greedy"] and row["levels"][0] == "mxfp4" for row in outcome.json["results"])
    assert "greedy: plain decoding of mxfp4" in outcome.stderr
    own = run(*arguments, "--levels", "target,mxfp4", "--json").json
    num_bytes = {row["level"]: row["num_bytes"] for row in own["forwards"]}
    greedy = outcome.json["results"][0]
    assert greedy["num_bytes"] == greedy["num_tokens"] * num_bytes["mxfp4"] < greedy["num_tokens"] * num_bytes["target"]
    outcome = run(*arguments, *FOUR_BITS, "--ablation")
    assert outcome.exit_code == 1
    assert "levels mxfp4, small: no 4-bit draft of the target; one is required to compare" in outcome.stderr
    assert "Name it in --levels, below the 16-bit level." in outcome.stderr


@pytest.fixture
def dtypes(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Of all caches that are made."""
    made: set[str] = set()
    real = KVCache.reserve

    def reserve(self: KVCache, num_tokens: int) -> None:
        made.add(self.dtype)
        real(self, num_tokens)

    monkeypatch.setattr(KVCache, "reserve", reserve)
    return made


@pytest.mark.parametrize(("dtype", "more"), [("bf16", []), ("fp16", ["--batch", 2])])
def test_generate_keeps_what_it_says(
    run: Any, package: Path, prompts: Path, dtypes: set[str], dtype: str, more: list[Any]
) -> None:
    arguments = ["generate", package, "--prompts", prompts, "--max-new-tokens", 12, "--json", "--check", *more]
    outcome = run(*arguments, "--kv-dtype", dtype)
    assert (outcome.exit_code, outcome.json["kv_dtype"], dtypes) == (0, dtype, {dtype})
    assert all(result["identical_to_target"] for result in outcome.json["results"])


@pytest.mark.parametrize(("dtype", "arguments"), [("bf16", ["--kv-dtype", "bf16", "--batch", 2]), ("fp32", [])])
def test_a_certificate_names_the_dtype(
    run: Any, package: Path, prompts: Path, tmp_path: Path, dtypes: set[str], dtype: str, arguments: list[Any]
) -> None:
    copy = shutil.copytree(package, tmp_path / "copy")
    command = ["verify", copy, "--decode", prompts, "--max-new-tokens", 8, "--write", "--json", *arguments]
    outcome = run(*command)
    assert (outcome.exit_code, outcome.json["decode"]["kv_dtype"], dtypes) == (0, dtype, {dtype})
    certificate = read_manifest(copy).certificate
    assert certificate is not None and certificate.decode is not None
    assert certificate.decode.kv_dtype == dtype
    assert certificate.decode.num_token_mismatches == certificate.decode.num_logit_mismatches == 0


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
