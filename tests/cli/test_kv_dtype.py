"""`--kv-dtype`: what caches keep of keys and values, in the commands that decode, and in certificates."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from mxconv.engine.cache import KVCache
from mxconv.package.manifest import read_manifest


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


def test_an_unknown_dtype_is_refused_with_those_that_are_known(run: Any, package: Path) -> None:
    outcome = run("serve", package, "--kv-dtype", "fp8")
    assert outcome.exit_code == 2
    assert "Invalid value for '--kv-dtype': " in outcome.stderr
    assert "'fp8' is not one of 'fp32', 'bf16', 'fp16'." in " ".join(outcome.stderr.split())
