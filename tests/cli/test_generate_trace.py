"""`mxconv generate --trace`: a line for every round and level."""

import json
from pathlib import Path
from typing import Any

import pytest
from plug_ins import RECYCLING

TRACE_KEYS = {
    "prompt", "round", "level", "num_asked", "num_proposed", "num_accepted", "num_forwards", "seconds", "num_nodes",
}  # fmt: skip


def test_the_trace_has_a_line_for_every_round_and_level(run: Any, package: Path, prompts: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    outcome = run("generate", package, "--prompts", prompts, "--max-new-tokens", 8, "--trace", trace, "--json")
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    results = outcome.json["results"]
    assert len(lines) == sum(3 * result["rounds"] for result in results)
    for line in lines:
        more = {"tree", "num_tokens", "text"} if line["level"] == "target" else set()
        assert set(line) == TRACE_KEYS | more | ({"prompt_text", "cpu"} if more and line["round"] == 0 else set())
    for number, result in enumerate(results):
        for level in result["levels"]:
            mine = [line for line in lines if (line["prompt"], line["level"]) == (number, level["name"])]
            assert [line["round"] for line in mine] == list(range(result["rounds"]))
            for key in ("num_proposed", "num_accepted", "num_forwards", "num_nodes"):
                assert sum(line[key] for line in mine) == level[key]
            assert sum(level["nodes_by_depth"]) == level["num_nodes"]


def test_the_trees_of_a_trace_tell_the_texts(run: Any, package: Path, prompts: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    outcome = run(
        "generate", package, "--prompts", prompts, "--max-new-tokens", 30, "--levels", "target",
        "--draft", f"{RECYCLING},num_draft_tokens=8,confidence=0", "--tree", 12, "--trace", trace, "--json",
    )  # fmt: skip
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    for number, result in enumerate(outcome.json["results"]):
        mine = [line for line in lines if (line["prompt"], line["level"]) == (number, "target")]
        assert mine[0]["prompt_text"] == result["prompt"]
        assert "".join(line["text"] for line in mine) == result["text"]
        assert [token for line in mine for token in line["tree"]["emitted"]] == result["token_ids"]
        for line in mine:
            tree = line["tree"]
            assert line["num_tokens"] == len(tree["emitted"]) == len(tree["emitted_texts"])
            assert [tree["tokens"][node] for node in tree["path"]][: len(tree["emitted"])] == tree["emitted"][:-1]
            assert len(tree["tokens"]) == len(tree["parents"]) == len(tree["probabilities"]) == len(tree["texts"])
    assert any(max(line["tree"]["parents"], default=-1) > 0 for line in lines if line["level"] == "target")


def test_a_trace_ends_with_the_text_where_a_stop_string_cuts_a_round(run: Any, package: Path, tmp_path: Path) -> None:
    arguments = ["generate", package, "--prompt", "Once", "--max-new-tokens", 40, "--levels", "target", "--json"]
    arguments += ["--draft", f"{RECYCLING},confidence=0", "--tree", 12]
    whole = run(*arguments).json["results"][0]
    for place in (8, 13, 21):
        trace = tmp_path / f"{place}.jsonl"
        stop = whole["text"][place : place + 3]
        result = run(*arguments, "--stop", stop, "--trace", trace).json["results"][0]
        lines = [json.loads(line) for line in trace.read_text().splitlines()]
        found = [token for line in lines if "tree" in line for token in line["tree"]["emitted"]]
        assert found == result["token_ids"]
        assert sum(line.get("num_tokens", 0) for line in lines) == len(found)


def test_an_existing_trace_is_not_overwritten(run: Any, package: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text("mine")
    outcome = run("generate", package, "--prompt", "a", "--trace", trace)
    assert outcome.exit_code == 1
    assert f"{trace}: exists; nothing is overwritten. Choose another name." in outcome.stderr
    assert trace.read_text() == "mine"


def test_a_trace_that_cannot_be_written_is_an_error(run: Any, package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "mxconv.report.output_file.check_output", lambda *_: None
    )  # as if the folder went away meanwhile
    outcome = run("generate", package, "--prompt", "a", "--max-new-tokens", 1, "--trace", "/nowhere/trace.jsonl")
    assert outcome.exit_code == 1
    assert "/nowhere/trace.jsonl: cannot be written (No such file or directory). Check space" in outcome.stderr
