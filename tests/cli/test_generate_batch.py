"""`mxconv generate --batch`: the same results as one after another, in the order of the prompts."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from mxconv.serving.llm_engine import Engine


@pytest.fixture
def many(tmp_path: Path) -> Path:
    texts = ["Once upon", "a", "The quick brown fox " * 5, "zz", "Once upon a"]
    path = tmp_path / "many.jsonl"
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    return path


@pytest.mark.parametrize(("more", "batch"), [(["--temperature", 0.9, "--seed", 5], 3), (["--stop", "e"], 1)], ids=str)
def test_texts_are_those_of_one_after_another(run: Any, package: Path, many: Path, more: list[Any], batch: int) -> None:
    arguments = ["generate", package, "--prompts", many, "--max-new-tokens", 12, "--json", *more]
    alone = run(*arguments).json["results"]
    together = run(*arguments, "--batch", batch, "--check").json
    assert len(alone) == 5
    for ours, theirs in zip(together["results"], alone, strict=True):
        assert {*ours} == {*theirs, "identical_to_target"}  # no text has a speed of its own
        for key in ("prompt", "text", "token_ids", "ending"):
            assert ours[key] == theirs[key]
        assert ours["identical_to_target"] is True
    assert together["seconds"] >= max(result["seconds"] for result in together["results"])
    assert together["geomean_speedup"] == pytest.approx(together["plain_seconds"] / together["seconds"])


def bytes_of_one(refused: dict[str, Any]) -> int:
    """That a text of one page and the rows of a round takes, as its error says."""
    found = re.fullmatch(
        r"KV cache: ([\d,]+) bytes for one sequence of \d+ tokens; at most 1,000 are allowed\. Raise --kv-bytes, or "
        r"shorten the prompt or the answer\.",
        refused["error"],
    )
    assert found is not None and (refused["token_ids"], refused["ending"]) == ([], "error")
    return int(found[1].replace(",", ""))


def test_prompts_that_do_not_fit_end_with_errors_of_their_own(run: Any, package: Path, tmp_path: Path) -> None:
    """The others are what they are alone."""
    texts = ["a", "The quick brown fox " * 4, "zz"]
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    arguments = ["generate", package, "--prompts", path, "--max-new-tokens", 12, "--json"]
    alone = [result["token_ids"] for result in run(*arguments).json["results"]]
    needed = bytes_of_one(run(*arguments, "--batch", 3, "--kv-bytes", 1000).json["results"][0])
    outcome = run(*arguments, "--batch", 3, "--kv-bytes", needed, "--check")
    results = outcome.json["results"]
    assert outcome.exit_code == 1 and [("error" in result) for result in results] == [False, True, False]
    assert [results[0]["token_ids"], results[2]["token_ids"]] == [alone[0], alone[2]]
    assert results[0]["identical_to_target"] and "identical_to_target" not in results[1]
    assert f"{path}: 1 of 3 prompts came to no end; the first: KV cache: " in outcome.stderr


def test_an_interrupt_keeps_what_there_is(run: Any, package: Path, many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, steps = Engine.step, 0

    def interrupted(self: Engine) -> Any:
        nonlocal steps
        steps += 1
        if steps == 3:
            raise KeyboardInterrupt
        return real(self)

    arguments = ["generate", package, "--prompts", many, "--max-new-tokens", 12, "--json"]
    whole = [result["token_ids"] for result in run(*arguments).json["results"]]
    monkeypatch.setattr(Engine, "step", interrupted)
    outcome = run(*arguments, "--batch", 2, "--check")
    assert outcome.exit_code == 130
    results = outcome.json["results"]
    assert results[-1]["token_ids"] == [] and results[-1]["ending"] == "interrupted"
    assert results[0]["token_ids"] and all(
        tokens[: len(result["token_ids"])] == result["token_ids"] for tokens, result in zip(whole, results, strict=True)
    )


@pytest.mark.parametrize("batch", [["--batch", 2], []], ids=str)
def test_an_interrupt_while_it_decodes_plainly_is_no_difference(
    run: Any, package: Path, many: Path, batch: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from mxconv.speculation.hierarchy import Decoding

    real = Decoding.round

    def interrupted(self: Decoding) -> Any:
        if not self.target.drafts and len(self.context) > 20:  # without drafts, somewhere in the third text
            raise KeyboardInterrupt
        return real(self)

    monkeypatch.setattr(Decoding, "round", interrupted)
    outcome = run("generate", package, "--prompts", many, "--max-new-tokens", 12, "--json", "--check", *batch)
    assert (outcome.exit_code, outcome.stderr.count("differ")) == (130, 0)
    assert all(result.get("identical_to_target", True) for result in outcome.json["results"])
    assert outcome.json["results"][2]["ending"] == "length"
    assert "plain_seconds" not in outcome.json
