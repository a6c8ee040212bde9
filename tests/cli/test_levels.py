"""`--levels` that begins with another level than the package's target, on the command line."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from plug_ins import RECYCLING

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


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        ("mxfp4,target", "level target below mxfp4; a draft must be cheaper than what it drafts for"),
        ("small,mxfp4", "level mxfp4 drafts for small; the 4-bit copy drafts for the 16-bit weights"),
        ("absent", "levels absent; at least one, out of target, mxfp4, small, is required."),
    ],
)
def test_levels_that_cannot_be_are_refused(run: Any, package: Path, levels: str, message: str) -> None:
    outcome = run("generate", package, "--prompt", "a", "--levels", levels)
    assert (outcome.exit_code, outcome.stdout) == (1, "")
    assert f"package: {message}" in outcome.stderr


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
