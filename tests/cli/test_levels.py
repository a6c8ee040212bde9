"""Levels on the command line: `--levels` that begins with another one, `--kv-dtype` of caches, `--draft mtp`."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from plug_ins import RECYCLING

from mxconv.engine.cache import KVCache
from mxconv.package.manifest import read_manifest

FOUR_BITS = ["--levels", "mxfp4,small"]


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
