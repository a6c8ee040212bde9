"""`mxconv generate` and `chat` with a constraint: what the text looks like, and what is refused."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

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
