"""What `mxconv generate` refuses, and what it says."""

from pathlib import Path
from typing import Any

import pytest
from checkpoints import write_tiny_llama

REFUSED_USAGE = {
    "neither prompt nor prompts": ([], "give either --prompt or --prompts"),
    "both": (["--prompt", "a", "--prompts", "b"], "give either --prompt or --prompts"),
    "words for numbers": (
        ["--prompt", "a", "--num-draft-tokens", "x"],
        "--num-draft-tokens: 'x'; whole numbers from 1 to 64, joined by commas, are required.",
    ),
    "too many tokens": (
        ["--prompt", "a", "--num-draft-tokens", "4,65"],
        "--num-draft-tokens: '4,65'; whole numbers from 1 to 64, joined by commas, are",
    ),
    "a tree of words": (["--prompt", "a", "--tree", "oak"], "--tree: 'oak'; auto, chain or a number from 1 to 63 is"),
    "a tree that is too large": (
        ["--prompt", "a", "--tree", "64"],
        "--tree: '64'; auto, chain or a number from 1 to 63",
    ),
    "a threshold above 1": (
        ["--prompt", "a", "--confidence", "1.5"],
        "--confidence: '1.5'; numbers from 0 to 1, joined",
    ),
    "no number": (
        ["--prompt", "a", "--confidence", "nan"],
        "--confidence: 'nan'; numbers from 0 to 1, joined by commas, are",
    ),
    "a comparison with other draws": (
        ["--prompt", "a", "--temperature", "1", "--accept", "block", "--check"],
        "--check compares tokens, and under --accept block those differ",
    ),
}


@pytest.mark.parametrize("case", REFUSED_USAGE)
def test_bad_usage_exits_with_2(run: Any, package: Path, case: str) -> None:
    arguments, message = REFUSED_USAGE[case]
    outcome = run("generate", package, *arguments)
    assert outcome.exit_code == 2
    assert message in outcome.stderr


REFUSED = {
    "an unknown level": (
        ["--prompt", "a", "--levels", "target,bsfp"],
        "package: levels target, bsfp; at least one, out of target, mxfp4, small, is required.",
    ),
    "numbers for drafts that are not there": (
        ["--prompt", "a", "--num-draft-tokens", "1,2,3"],
        "--num-draft-tokens: 3 numbers for 2 draft levels; one for all, or one each, is required.",
    ),
    "an empty prompt": (["--prompt", ""], "prompt: 0 tokens; at least one is required. Give a text."),
    "a prompt that is too long": (
        ["--prompt", "a" * 129],
        "prompt: 129 tokens; the target has 128 positions (max_position_embeddings). Shorten it.",
    ),
    "an unknown kernel": (["--prompt", "a", "--kernel", "mmx"], "--kernel: 'mmx'; on this processor one of "),
    "no prompt file": (["--prompts", "/nowhere/p.jsonl"], "/nowhere/p.jsonl: no such file; a readable file is"),
    "a trace without a folder": (
        ["--prompt", "a", "--trace", "/nowhere/trace.jsonl"],
        "/nowhere/trace.jsonl: its folder /nowhere does not exist; it must. Create it first.",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_done_exits_with_1_and_a_message(run: Any, package: Path, case: str) -> None:
    arguments, message = REFUSED[case]
    outcome = run("generate", package, *arguments)
    assert outcome.exit_code == 1
    assert message in outcome.stderr
    assert outcome.stdout == ""


def test_the_kernel_may_be_named_by_the_environment(run: Any, package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["generate", package, "--prompt", "a", "--max-new-tokens", 1]
    monkeypatch.setenv("MXCONV_KERNEL", "avx512")
    outcome = run(*arguments)
    assert outcome.exit_code == 1
    assert "MXCONV_KERNEL: 'avx512'; on this processor one of " in outcome.stderr
    assert run(*arguments, "--kernel", "numpy").exit_code == 0


def test_chat_without_a_template_says_what_is_missing(run: Any, package: Path) -> None:
    outcome = run("generate", package, "--prompt", "Hi", "--chat")
    assert (outcome.exit_code, outcome.stdout) == (1, "")
    assert f"{package}: there is no chat template; chat_template.jinja, or chat_template in" in outcome.stderr


def test_a_model_of_another_family_is_converted_and_verified_and_generate_names_what_is_missing(
    run: Any, tmp_path: Path
) -> None:
    other = {"model_type": "some_bert", "type_vocab_size": 2}
    source = write_tiny_llama(tmp_path / "source", **other)
    assert run("quantize", source, "-o", tmp_path / "package").exit_code == 0
    assert run("verify", tmp_path / "package", "--source", source).exit_code == 0
    assert run("inspect", tmp_path / "package").exit_code == 0
    outcome = run("generate", tmp_path / "package", "--prompt", "Once")
    assert outcome.exit_code == 1
    assert 'config.json: model_type is "some_bert"; mxconv runs arcee, ' in outcome.stderr
    assert "It needs attention in both directions, which mxconv does not have." in outcome.stderr
    assert 'how to add a family says CONTRIBUTING.md, "Add a family".' in outcome.stderr
