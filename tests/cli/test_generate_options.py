"""`mxconv generate` with many prompts at a time, another level first, caches of other types, and constraints."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from mxconv.engine.cache import KVCache


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


DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}
SCHEMA = {"type": "array", "items": DIGIT, "minItems": 2, "maxItems": 2}


def test_every_constraint_holds_with_drafts_and_side_by_side(run: Any, package: Path, tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    (tmp_path / "rules.gbnf").write_text('root ::= ("red" | "blue") " " [0-9]')
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "Once"}\n{"prompt": "A cat"}\n')
    common = ("generate", package, "--max-new-tokens", 40, "--check", "--json")
    for words, form in (
        (("--json-schema", tmp_path / "schema.json"), r"\[\d, \d\]"),
        (("--regex", "(yes|no)!", "--temperature", 0.9, "--seed", 3), "(yes|no)!"),
        (("--grammar", tmp_path / "rules.gbnf"), r"(red|blue) \d"),
    ):
        for how in (("--prompt", "Once upon"), ("--prompts", tmp_path / "prompts.jsonl", "--batch", 2)):
            outcome = run(*common, *words, *how)
            assert outcome.exit_code == 0, outcome.stderr
            for result in outcome.json["results"]:
                assert re.fullmatch(form, result["text"].removesuffix("</s>")) and result["identical_to_target"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--regex", r"\{\}", "--json"), r"regex: b'\}' must come next, for which the tokenizer has no tokens"),
        (("--regex", "(a"), "regex: .*; what llguidance supports is required"),
        (("--json-schema", "missing.json"), "missing.json: "),
        (("--json-schema", "list.json"), "list.json: json_schema: no JSON object; a JSON Schema is required"),
        (("--grammar", "latin1.lark"), "latin1.lark: no UTF-8 at byte 10"),
        (("--grammar", "half.gbnf"), "half.gbnf|grammar: "),
        (("--regex", "a", "--grammar", "good.lark"), "give one of --json-schema, --regex and --grammar"),
    ],
)
def test_what_cannot_be_followed_is_refused(
    run: Any, package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], message: str
) -> None:
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "good.lark").write_text('start: "a"')
    (tmp_path / "half.gbnf").write_text("root ::= (")
    (tmp_path / "latin1.lark").write_bytes(b'start: "a\xe9"'.replace(b"a\xe9", b"ab\xe9"))
    monkeypatch.chdir(tmp_path)
    outcome = run("generate", package, "--prompt", "Once upon", *words)
    assert outcome.exit_code != 0 and not outcome.stdout.strip()
    assert re.search(message, outcome.stderr), outcome.stderr


def test_without_the_library_the_extra_is_named(run: Any, package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    outcome = run("generate", package, "--prompt", "Once upon", "--regex", "a")
    assert outcome.exit_code != 0 and "pip install '.[constrain]'" in outcome.stderr
