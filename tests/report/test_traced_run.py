"""Traces read back: sums against the run's own lines, and every file that is none refused by name and line."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_traces import PROMPTS, run_lines, tokenizer, write_lines

from mxconv.errors import CheckpointError, MxconvError
from mxconv.report.traced_run import read_run

LATER = ("tree", "num_tokens", "text", "prompt_text", "num_nodes")


def without_trees(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As versions before wrote them."""
    return [{key: value for key, value in line.items() if key not in LATER} for line in lines]


def test_a_run_is_read_back_as_it_was(tmp_path: Path) -> None:
    lines = run_lines()
    run = read_run(write_lines(tmp_path / "run.jsonl", lines))
    targets = [line for line in lines if line["level"] == "target"]
    assert [rounds[0].prompt_text for rounds in run.prompts.values()] == [
        tokenizer().decode(prompt) for prompt in PROMPTS
    ]
    assert len(run.rounds) == len(targets)
    assert run.summary.num_tokens == sum(len(line["tree"]["emitted"]) for line in targets) == 3 * 28
    for (found, *_), line in zip(run.rounds, targets, strict=True):
        assert found.tree is not None
        for key in ("draft", "tokens", "parents", "probabilities", "path", "emitted", "texts", "emitted_texts"):
            assert getattr(found.tree, key) == line["tree"][key]
        assert found.text == line["text"]
        assert sum(found.tree.widths) == len(found.tree.tokens)
    names = [level.name for level in run.summary.levels]
    assert names == ["target", "mxfp4", "prompt-lookup", "token-recycling"]
    for level in run.summary.levels:
        own = [line for line in lines if line["level"] == level.name]
        for key in ("num_forwards", "num_proposed", "num_nodes", "num_accepted"):
            assert getattr(level, key) == sum(line[key] for line in own)
    recycled = run.depths["token-recycling"]
    assert sum(depth["num_nodes"] for depth in recycled) == run.summary.levels[3].num_nodes
    assert sum(depth["num_accepted"] for depth in recycled) == run.summary.levels[3].num_accepted
    assert recycled[0]["num_nodes"] > recycled[0]["num_rounds"]  # trees
    copied = run.depths["mxfp4"]
    assert copied[0]["num_nodes"] > copied[0]["num_rounds"]  # runners-up of what it verified
    assert json.loads(json.dumps(run.to_json()))["num_rounds"] == len(run.rounds)


def test_a_trace_of_before_there_were_trees_has_its_sums(tmp_path: Path) -> None:
    run = read_run(write_lines(tmp_path / "run.jsonl", without_trees(run_lines())))
    assert not run.has_trees
    assert run.depths == {}
    assert run.summary.num_tokens == 3 * 28  # the target's own tokens, and its draft's that stood
    assert [level.num_nodes for level in run.summary.levels] == [level.num_proposed for level in run.summary.levels]


def target_with_a_tree() -> dict[str, Any]:
    """In which two guesses stood."""
    found = next(line for line in run_lines() if len(line.get("tree", {}).get("path", [])) == 2)
    return copy.deepcopy(found) | {"round": 99}


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no object": ({"tree": [1]}, r"tree is \[1\]; a valid dictionary .* is required"),
    "a token below 0": ({"tree.tokens": [-1]}, r"tree\.tokens\.0 is -1; greater than or equal to 0 is required"),
    "a parent that is itself": (
        {"tree": {"tokens": [5], "parents": [0]}},
        r"tree: parents\[0\] is 0; an earlier node, or -1, is required",
    ),
    "too few parents": ({"tree.parents": [-1]}, r"tree: parents has 1 values; \d+, one for each token, are required"),
    "a huge tree": ({"tree.parents": [-1] * 2000}, r"tree\.parents is \[-1, .*; at most 1024 items after validation"),
    "a probability that is none": ({"tree.probabilities": [float("nan")]}, r"tree\.probabilities\.0 is nan; a finite"),
    "too few probabilities": ({"tree.probabilities": [0.5]}, r"tree: probabilities has 1 values; \d+, one for each"),
    "a path out of the tree": ({"tree.path": [4000, 1]}, r"tree: path\[0\] is 4000; a child of node -1 is required"),
    "a path that jumps": ({"tree.path": [0, 0]}, r"tree: path\[1\] is 0; a child of node 0 is required"),
    "another text": (
        {"tree.emitted": [1, 1], "tree.emitted_texts": []},
        r"tree: emitted\[0\] is 1; token \d+ is required",
    ),
    "too much text": ({"tree.path": []}, r"tree: emitted has 3 values; at most 1 are required"),
    "another count": ({"num_tokens": 99}, r"num_tokens is 99; 3, as emitted, is required"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_line_that_no_run_writes_is_refused_by_its_number(case: str, tmp_path: Path) -> None:
    changes, message = BAD[case]
    line = target_with_a_tree()
    for key, value in changes.items():
        part, _, member = key.rpartition(".")
        (line[part] if part else line)[member] = value
    path = write_lines(tmp_path / "run.jsonl", [*run_lines()[:6], line])
    with pytest.raises(MxconvError, match=rf"^{path}: line 7: {message}"):
        read_run(path)


def test_files_that_are_no_traces_are_refused(tmp_path: Path) -> None:
    path, lines = tmp_path / "run.jsonl", run_lines()[:2]
    with pytest.raises(CheckpointError, match="no such file"):
        read_run(path)
    twice = "".join(json.dumps(line) + "\n" for line in (*lines, lines[1])).encode()
    for content, message in (
        (b"", "0 lines; at least one is required"),
        (b"\xff\xfe\n", r"line 1: no JSON \("),
        (b"[" * 100_000, r"line 1: no JSON \("),
        (b"{", r"line 1: no JSON \(.*\); a trace line is required"),
        (bytes(64_000_001), "64,000,001 bytes; at most 64,000,000 are read"),
        (twice, r"line 3: level 'mxfp4' a second time in round 0 of prompt 0; each once is"),
    ):
        path.write_bytes(content)
        with pytest.raises(MxconvError, match=message):
            read_run(path)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 1 << 70) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=6,
)
KEYS = ["draft", "tokens", "parents", "probabilities", "path", "emitted", "texts", "emitted_texts"]


@settings(max_examples=25)
@given(st.sampled_from(KEYS), st.none() | st.integers(0, 3), VALUES)
def test_whatever_stands_in_a_tree_is_read_or_refused(key: str, place: int | None, value: Any) -> None:
    import tempfile

    line = target_with_a_tree()
    if place is None or key == "draft":
        line["tree"][key] = value
    else:
        line["tree"][key][place:] = [value]
    with tempfile.TemporaryDirectory() as folder:
        path = write_lines(Path(folder) / "run.jsonl", [line])
        try:
            run = read_run(path)
        except MxconvError as error:
            assert str(error).startswith(f"{path}: line 1: ")
        else:
            assert len(run.rounds) == 1
