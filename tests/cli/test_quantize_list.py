"""`mxconv quantize --from-file`."""

import json
from pathlib import Path
from typing import Any

from checkpoints import write_tiny_llama
from packages import files_of, quantize


def test_every_line_is_converted_and_the_report_says_what_failed(run: Any, tmp_path: Path) -> None:
    source = write_tiny_llama(tmp_path / "a model")
    lines = [
        {"source": source, "output": tmp_path / "one", "codec": "bsfp", "draft": ["prompt-lookup", "token-recycling"]},
        None,
        {"source": tmp_path / "missing", "output": tmp_path / "two"},
        {"source": source, "output": tmp_path / "three", "codec": "fp4"},
        [1],
        {"source": source, "output": tmp_path / "four", "json": True},
        {"source": source, "output": tmp_path / "five", "max-shard-bytes": 10**6, "force": False, "lm_head": "keep"},
        {"source": source, "output": tmp_path / "six", "draft": {"kind": "stand"}},
        {"source": source},
        {"source": source, "output": tmp_path / "seven", "colour": "blue"},
    ]
    listed = tmp_path / "list.jsonl"
    listed.write_text("\n".join("" if line is None else json.dumps(line, default=str) for line in lines) + "\n{")
    done = run("quantize", "--from-file", listed, "--json")
    assert done.exit_code == 1, done.stderr
    found = done.json
    assert (found["num_converted"], found["num_failed"]) == (2, 8)
    errors = {line["line"]: line["error"] for line in found["lines"]}
    assert errors[1] is None and errors[7] is None
    assert "missing" in errors[3] and "fp4" in errors[4]
    assert errors[5] == "list; a JSON object is required"
    assert errors[6] == "json: no option of a line"
    assert errors[8] == "draft: an object; a text, a number, true, false or a list is required"
    assert errors[9] == "source and output, two texts, are required"
    assert "colour" in errors[10] and errors[11].endswith("a JSON object is required")
    assert f"{listed}:5: list;" in done.stderr and "2 of 10 lines converted" in done.stderr
    quantize(source, tmp_path / "expected", codec="bsfp", drafts=("prompt-lookup", "token-recycling"))
    assert files_of(tmp_path / "one") == files_of(tmp_path / "expected")


def test_what_cannot_be_a_list_is_refused(run: Any, tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n\n")
    for words, said in (
        (["--from-file", str(tmp_path / "empty")], "holds no line"),
        (["--from-file", str(tmp_path / "none")], "cannot be read"),
        (["--from-file", str(tmp_path / "empty"), "--codec", "bsfp"], "--from-file with codec"),
        ([], "are required"),
        (["model"], "are required"),
    ):
        done = run("quantize", *words)
        assert done.exit_code == 2 and said in done.stderr.replace("\n", " "), done.stderr
