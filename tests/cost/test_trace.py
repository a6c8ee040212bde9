"""Traces: sums by level, the acceptance that the equation needs, and files that are none."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from mxconv.cost.speedup import acceptance_of, expected_tokens
from mxconv.cost.trace import read_trace
from mxconv.errors import MxconvError


def line(number: int, level: str, counts: tuple[int, int, int] = (0, 0, 1), **changes: Any) -> str:
    proposed, accepted, forwards = counts
    members = {"prompt": 0, "round": number, "level": level, "num_proposed": proposed, "num_accepted": accepted}
    return json.dumps(members | {"num_forwards": forwards, "seconds": 0.5, "chosen": "auto"} | changes)


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def test_levels_are_summed_without_the_prompts_own_round(tmp_path: Path) -> None:
    rounds = [line(0, "target", seconds=9.0), line(0, "draft", (0, 0, 0))]
    for number, accepted in ((1, 4), (2, 1)):
        rounds += [line(number, "target"), line(number, "draft", (4, accepted, 4), seconds=0.25)]
    trace = read_trace(write(tmp_path / "run.jsonl", *rounds))
    assert (trace.name, trace.num_rounds, trace.num_tokens) == ("run", 2, 7)
    target, draft = trace.levels
    assert (target.num_forwards, target.seconds, target.acceptance) == (2, 1.0, 0.0)
    assert (draft.num_proposed, draft.num_accepted, draft.num_forwards, draft.seconds) == (8, 5, 8, 0.5)
    assert draft.num_draft_tokens == 4
    assert expected_tokens(draft.acceptance, 4) - 1 == pytest.approx(2.5)
    assert draft.seconds_per_forward == 1 / 16
    assert trace.tokens_per_second == 7 / 1.5


def test_acceptance_by_position_counts_rounds_that_came_so_far(tmp_path: Path) -> None:
    outcomes = [3] * 10 + [1] * 10 + [0] * 20
    lines = [text for n, k in enumerate(outcomes, 1) for text in (line(n, "target"), line(n, "draft", (3, k, 3)))]
    draft = read_trace(write(tmp_path / "run.jsonl", *lines)).levels[1]
    assert draft.acceptance_by_position == [20 / 40, 10 / 20, 10 / 10]


def test_acceptance_is_the_inverse_of_expected_tokens() -> None:
    for acceptance in (0.1, 0.66, 0.974):
        assert acceptance_of(expected_tokens(acceptance, 5.3) - 1, 5.3) == pytest.approx(acceptance)
    assert acceptance_of(4, 4) == pytest.approx(1)
    assert acceptance_of(0, 0) == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", r"line 1: \[1\]; a JSON object is required"),
        (line(1, "target", (-1, 0, 1)), r"line 1: num_proposed is -1; greater than or equal to 0 is required"),
        (line(1, "target", seconds=None), r"line 1: seconds is None; a valid number is required"),
        (line(1, "target", seconds=float("nan")), r"line 1: seconds is nan; a finite number is required"),
        (line(1, "target").replace('"target"', "3"), r"line 1: level is 3; a valid string is required"),
        (line(1, "a", (3, 1, 1), num_nodes=2), r"line 1: num_nodes is 2; at least num_proposed, 3, is required"),
        *((line(1, "a", **{key: 10**400}), rf"line 1: {key} is 1000+; ") for key in ("num_nodes", "seconds")),
        (line(0, "target"), r"run\.jsonl: no round after a prompt's first; at least one is required"),
    ],
)
def test_other_files_are_errors_that_name_the_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(MxconvError, match=message):
        read_trace(write(tmp_path / "run.jsonl", text))


def test_nodes_of_trees_are_rows_and_do_not_change_the_tokens(tmp_path: Path) -> None:
    lines = []
    for number, (accepted, nodes) in enumerate(((2, 9), (0, 12), (1, 3)), 1):
        lines += [
            line(number, "target", num_tokens=accepted + 1),
            line(number, "draft", (3, accepted, 1), num_nodes=nodes),
        ]
    target, draft = read_trace(write(tmp_path / "run.jsonl", *lines)).levels
    assert (target.num_nodes, draft.num_nodes, draft.num_proposed) == (0, 24, 9)
    assert (draft.num_rows, draft.num_draft_tokens, draft.rows_per_token) == (8.0, 3.0, 24 / 9)
    old = [re.sub(r', "num_nodes": \d+', "", text) for text in lines]
    assert read_trace(write(tmp_path / "old.jsonl", *old)).levels[1].num_rows == 3.0


def test_a_trace_that_counts_its_tokens_is_taken_at_its_word(tmp_path: Path) -> None:
    """The target may have queried its second draft, whose accepted tokens the sums of its first do not have."""
    lines = []
    for number in (1, 2):
        lines += [line(number, "target", num_tokens=4), line(number, "a", (0, 0, 0)), line(number, "b", (3, 3, 3))]
    assert read_trace(write(tmp_path / "run.jsonl", *lines)).num_tokens == 8
    assert read_trace(write(tmp_path / "old.jsonl", lines[0], *lines[1:3], line(2, "target"))).num_tokens == 5
