"""`mxconv train` as the shell runs it."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from mxconv.checkpoint.regular_file import sha256_file
from mxconv.package.ngram_table import read_ngram_table
from mxconv.text.tokenizer import Tokenizer
from mxconv.train import ngram_trainer


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("the cat sat on the mat\n" * 5)
    return path


def test_a_table_is_trained_and_reported(run: Any, package: Path, text: Path, tmp_path: Path) -> None:
    output = tmp_path / "table.safetensors"
    outcome = run("train", "ngram", text, text, "--tokenizer", package, "-o", output, "--min-count", 3, "--json")
    assert outcome.exit_code == 0
    table = read_ngram_table(output)
    assert outcome.stdout.count("\n") == 1
    found = outcome.json
    assert found.pop("seconds") > 0
    assert found == {
        "table": str(output),
        "num_tokens": 230,
        "vocab_size": 96,
        "tokenizer_sha256": sha256_file(package / "tokenizer.json"),
        "num_bigrams": len(table.bigrams.contexts),
        "num_trigrams": len(table.trigrams.contexts),
        "min_count": 3,
        "num_pruned": 0,
        "num_bytes": output.stat().st_size,
    }
    assert found["num_bigrams"] > 5 and found["num_trigrams"] > 10
    line = f"{output}: {found['num_bigrams']} bigrams and {found['num_trigrams']} trigrams from 230 tokens, "
    assert line in outcome.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["table.safetensors", "text.txt"]


def test_questions_are_answered_in_the_chat_template(run: Any, source: Path, tmp_path: Path) -> None:
    questions, output = tmp_path / "questions.jsonl", tmp_path / "own.jsonl"
    questions.write_text('{"prompt": "a cat"}\n{"messages": [{"role": "user", "content": "a mat"}]}\n')
    source = Path(shutil.copytree(source, tmp_path / "instruct"))
    (source / "chat_template.jinja").write_text("{% for m in messages %}<{{ m.role }}>{{ m.content }};{% endfor %}")
    arguments = ("train", "generate", questions, "--target", source, "-o", output, "--chat", "--temperature", 0)
    outcome = run(*arguments, "--num-texts", 3, "--new-tokens", 5, "--json")
    assert outcome.exit_code == 0, outcome.stderr
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    tokenizer = Tokenizer.from_folder(source)
    prompts = [tokenizer.encode(f"<user>{text};", add_special_tokens=False) for text in ("a cat", "a mat", "a cat")]
    assert [row["token_ids"][: row["num_prompt_tokens"]] for row in rows] == prompts
    assert rows[0] == rows[2]
    assert outcome.json["num_tokens"] == sum(len(row["token_ids"]) - row["num_prompt_tokens"] for row in rows) <= 15


def test_what_was_dropped_while_counting_is_said(
    run: Any, package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ngram_trainer, "MIN_HELD", 8)
    text = tmp_path / "text.txt"
    text.write_text("".join(map(chr, range(32, 127))))  # 94 pairs, none twice
    outcome = run("train", "ngram", text, "--tokenizer", package, "-o", tmp_path / "t", "--max-entries", 1)
    assert outcome.exit_code == 0
    assert "rare n-grams were dropped while counting; more --max-entries keep more of them" in outcome.stdout
    assert read_ngram_table(tmp_path / "t").num_pruned > 0
