"""`mxconv verify`: the JSON contract, exit codes, decoding and the certificate."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import llama_tensors, write_safetensors, write_tiny_llama
from packages import forge

from mxconv.kernels.engine import native_names
from mxconv.package.manifest import read_manifest
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.statistics import Generation

KEYS = {
    "ok", "lossless", "num_tensors", "num_bit_exact", "num_rebuilt", "num_derived", "num_kept", "tensors", "decode",
}  # fmt: skip
TENSOR_KEYS = {
    "name", "codec", "status", "sha256_source", "sha256_reconstructed", "max_abs_error", "is_kept", "is_derived",
}  # fmt: skip
DECODE_KEYS = {
    "num_prompts", "num_tokens", "num_token_mismatches", "num_logit_mismatches", "num_chat_prompts", "system", "target",
    "batch", "kv_dtype", "kernel", "processors",
}  # fmt: skip


@pytest.fixture
def copy(package: Path, tmp_path: Path) -> Path:
    """A package to write into or to damage."""
    return Path(shutil.copytree(package, tmp_path / "copy"))


def test_the_last_line_of_stdout_is_the_contracts_object(run: Any, package: Path, source: Path) -> None:
    for arguments in ([], ["--source", source]):
        outcome = run("verify", package, *arguments, "--json")
        assert outcome.exit_code == 0
        assert len(outcome.stdout.splitlines()) == 1
        result = outcome.json
        assert set(result) >= KEYS
        assert (result["ok"], result["lossless"], result["decode"]) == (True, True, None)
        assert result["num_tensors"] == result["num_bit_exact"] == len(result["tensors"]) == 12
        for tensor in result["tensors"]:
            assert set(tensor) >= TENSOR_KEYS
            assert tensor["status"] == "bit-exact"
            assert tensor["sha256_source"] == tensor["sha256_reconstructed"]
            assert tensor["max_abs_error"] == 0.0
        assert "12 of 12 tensors bit-exact" in outcome.stderr


def test_a_package_without_its_target_claims_no_bit_and_says_which_source_to_give(
    run: Any, source: Path, tmp_path: Path
) -> None:
    package = tmp_path / "package"
    run("quantize", source, "-o", package, "--target", "reference")
    outcome = run("verify", package, "--json")
    assert outcome.exit_code == 0 and (outcome.json["ok"], outcome.json["lossless"]) == (True, False)
    assert outcome.json["num_bit_exact"] == outcome.json["num_kept"] == outcome.json["num_derived"] == 0
    assert outcome.stderr.splitlines() == [
        "nothing to rebuild here: the package references its target, and only the hashes of its files were compared. "
        f"To derive the draft's codes again, give --source {source}",
        f"{package}: ok",
    ]
    outcome = run("verify", package, "--rebuild")
    assert outcome.stdout.splitlines() == [f"{source}: gives every byte of the 5 files", f"{package}: ok"]
    outcome = run("verify", package, "--source", source, "--json")
    counts = ("num_bit_exact", "num_rebuilt", "num_derived", "num_kept", "num_tensors")
    assert outcome.exit_code == 0 and [outcome.json[key] for key in counts] == [0, 0, 8, 4, 12]
    forge(package, lambda members: members["source"].update(id="org/a model", commit="c0ffee"))
    assert "give --source 'org/a model' --revision c0ffee\n" in run("verify", package).stdout


def test_decoding_is_compared_with_and_without_drafts_and_certified(run: Any, copy: Path, prompts: Path) -> None:
    for more, batch, dtype, level in (
        (("--batch", 2, "--kv-dtype", "bf16"), 2, "bf16", "target"),
        (("--levels", "mxfp4,small"), None, "fp32", "mxfp4"),
        (("--memory", "1TB") if native_names() else (), None, "fp32", "target"),
    ):
        outcome = run("verify", copy, "--decode", prompts, "--max-new-tokens", 8, "--write", "--json", *more)
        assert outcome.exit_code == 0
        decode = outcome.json["decode"]
        assert set(decode) == DECODE_KEYS
        assert (decode["num_prompts"], decode["batch"]) == (3, batch)
        assert 0 < decode["num_tokens"] <= 24
        assert decode["num_token_mismatches"] == decode["num_logit_mismatches"] == 0
        side_by_side = ", 2 at a time with them" if batch else ""
        said = (
            f"of 3 prompts decoded by {level}, with drafts and without{side_by_side}: 0 token mismatches, 0 logit mis"
        )
        assert said in outcome.stderr
        certificate = read_manifest(copy).certificate
        assert certificate is not None and certificate.decode is not None
        assert certificate.decode.kv_dtype == decode["kv_dtype"] == dtype
        assert certificate.decode.target == decode["target"] == level == read_manifest(copy).decoded_level
        notes = run("inspect", copy, "--json").json["notes"]
        assert f"of 3 prompts decoded by {level} with drafts and without, 0 tokens and 0 " in notes[1]


def test_a_token_that_differs_is_counted_and_fails(
    run: Any, package: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = Hierarchy.generate

    def lies(self: Hierarchy, *arguments: Any) -> Generation:
        generation = honest(self, *arguments)
        if len(self.levels) > 1:
            generation.token_ids[0] ^= 1
        return generation

    monkeypatch.setattr(Hierarchy, "generate", lies)
    outcome = run("verify", package, "--decode", prompts, "--max-new-tokens", 4, "--write", "--json")
    assert outcome.exit_code == 1
    assert outcome.json["ok"] is False
    assert outcome.json["decode"]["num_token_mismatches"] == 3
    assert outcome.json["decode"]["num_logit_mismatches"] == 0
    assert read_manifest(package).certificate is None


def test_a_damaged_file_exits_with_1_and_is_named(run: Any, copy: Path, prompts: Path) -> None:
    path = copy / "tokenizer.json"
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    outcome = run("verify", copy, "--decode", prompts, "--write", "--json")
    assert outcome.exit_code == 1
    assert outcome.json["ok"] is False
    assert outcome.json["damaged_files"] == ["tokenizer.json"]
    assert outcome.json["decode"] is None  # nothing is run from a damaged package
    assert "damaged file tokenizer.json: its SHA-256 is not the recorded one" in outcome.stderr
    assert "not ok" in outcome.stderr
    assert read_manifest(copy).certificate is None


def test_an_infinite_error_is_null_since_json_has_no_infinity(run: Any, package: Path, tmp_path: Path) -> None:
    other = write_tiny_llama(tmp_path / "other", num_hidden_layers=1)
    tensors = llama_tensors(json.loads((other / "config.json").read_text()))
    tensors["lm_head.weight"][3, 4] = np.inf
    write_safetensors(other / "model.safetensors", tensors)
    outcome = run("verify", package, "--source", other, "--json")
    assert outcome.exit_code == 1

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    result = json.loads(outcome.stdout.splitlines()[-1], parse_constant=refuse)
    (head,) = (tensor for tensor in result["tensors"] if tensor["name"] == "lm_head.weight")
    assert (head["status"], head["max_abs_error"]) == ("mismatch", None)
