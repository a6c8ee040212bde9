"""`mxconv quantize --from-file`."""

import json
import subprocess
import sys
from pathlib import Path

from checkpoints import write_tiny_llama
from packages import files_of, quantize


def run(*words: str) -> subprocess.CompletedProcess[str]:
    words = (sys.executable, "-m", "mxconv.cli.main", "quantize", *words)
    return subprocess.run(words, check=False, capture_output=True, text=True)


def test_every_line_is_converted_and_the_report_says_what_failed(tmp_path: Path) -> None:
    source = write_tiny_llama(tmp_path / "a model")
    lines = [
        "# source, output, options",
        "",
        f"'{source}' -o {tmp_path / 'one'} --codec bsfp",
        f"{tmp_path / 'missing'} -o {tmp_path / 'two'}",
        f"'{source}' -o {tmp_path / 'three'} --codec fp4",
        f"'{source} -o x",
        f"'{source}' -o {tmp_path / 'four'} --json",
        f"'{source}' -o {tmp_path / 'five'}",
    ]
    listed = tmp_path / "list.txt"
    listed.write_text("\n".join(lines))
    done = run("--from-file", str(listed), "--json")
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert (found["num_converted"], found["num_failed"]) == (2, 4)
    errors = {line["line"]: line["error"] for line in found["lines"]}
    assert errors[3] is None and errors[8] is None
    assert str(tmp_path / "missing") in errors[4] or "missing" in errors[4]
    assert errors[6] == "No closing quotation; quotes must end"
    assert errors[7] == "--json: no option of a line"
    assert f"{listed}:6: No closing quotation" in done.stderr and "2 of 6 lines converted" in done.stderr
    quantize(source, tmp_path / "expected", codec="bsfp")
    assert files_of(tmp_path / "one") == files_of(tmp_path / "expected")


def test_what_cannot_be_a_list_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("# nothing\n")
    for words, said in (
        (["--from-file", str(tmp_path / "empty")], "holds no line"),
        (["--from-file", str(tmp_path / "none")], "cannot be read"),
        (["--from-file", str(tmp_path / "empty"), "--codec", "bsfp"], "--from-file with codec"),
        ([], "are required"),
        (["model"], "are required"),
    ):
        done = run(*words)
        assert done.returncode == 2 and said in done.stderr.replace("\n", " "), done.stderr
