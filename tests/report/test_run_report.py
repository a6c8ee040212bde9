"""The page of a run: it draws what was decoded, and shows every token as text."""

import copy
import html
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_traces import run_lines, write_lines

from mxconv.cost.trace import ProposedTree
from mxconv.report import run_report
from mxconv.report.run_report import MARKS, OWN, label_pieces, render_run_page, tree_rows
from mxconv.report.traced_run import TracedRun, read_run

KINDS = ("accepted", "rejected", "own")


@pytest.fixture
def run(tmp_path: Path) -> TracedRun:
    return read_run(write_lines(tmp_path / "run.jsonl", run_lines()))


def parse(page: str) -> ElementTree.Element:
    """The page is XML: every element is closed and every text escaped."""
    return ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>").strip())


def words(element: ElementTree.Element) -> str:
    return " ".join("".join(element.itertext()).split())


def classes(element: ElementTree.Element) -> list[str]:
    return (element.get("class") or "").split()


def with_class(element: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    return [found for found in element.iter() if name in classes(found)]


def test_every_node_of_every_round_is_drawn_once_and_as_what_became_of_it(run: TracedRun) -> None:
    page = parse(render_run_page(run))
    drawn = {kind: sum(kind in classes(cell) for cell in page.iter("td")) for kind in KINDS}
    targets = [line["tree"] for line in run_lines() if line["level"] == "target"]
    stood = sum(len(tree["path"]) for tree in targets)
    assert stood > 10
    assert drawn == {
        "accepted": stood,
        "rejected": sum(len(tree["tokens"]) for tree in targets) - stood,
        "own": len(targets),  # none of these texts ends among guesses
    }


def test_the_text_is_told_as_it_was_written(run: TracedRun) -> None:
    page = parse(render_run_page(run))
    found = ["".join(text.itertext()) for text in with_class(page, "text")]
    assert len(found) == 3
    for rounds, text in zip(run.prompts.values(), found, strict=True):
        expected = rounds[0].prompt_text + "".join(each.text for each in rounds)
        shown = text.replace("↵\n", "\n").replace("⇥", "\t").replace("\\x1b", "\x1b").replace("\\u202e", "\u202e")
        assert shown == expected
        assert len(expected) > 28


def test_tokens_are_escaped_and_white_space_shows(run: TracedRun) -> None:
    page = render_run_page(run)
    assert "<script" not in page and "</script" not in page and "<!--" not in page
    assert "\x1b" not in page and "\u202e" not in page
    assert html.escape("</script><script>alert(1)</script>") in page
    marks = {mark.text for mark in parse(page).iter("i")}
    assert set(MARKS.values()) <= marks


def test_the_page_needs_nothing_else(run: TracedRun) -> None:
    page = render_run_page(run)
    for word in ("http:", "https:", "<link", "@import", "url(", "src=", "<script"):
        assert word not in page
    assert 'name="viewport"' in page
    assert "prefers-color-scheme: dark" in page


def test_a_trace_without_trees_has_its_tables_and_says_why_nothing_is_drawn(tmp_path: Path) -> None:
    later = ("tree", "num_tokens", "text", "prompt_text", "num_nodes")
    lines = [{key: value for key, value in line.items() if key not in later} for line in run_lines()]
    page = parse(render_run_page(read_run(write_lines(tmp_path / "run.jsonl", lines))))
    assert "This trace has no trees: an earlier version wrote it." in words(page)
    assert "token-recycling" in words(page)
    assert not with_class(page, "round")


def test_a_text_that_ends_among_guesses_has_no_token_of_the_targets_own(tmp_path: Path) -> None:
    line = copy.deepcopy(next(line for line in run_lines() if len(line.get("tree", {}).get("path", [])) == 2))
    line["tree"]["emitted"] = line["tree"]["emitted"][:1]
    line["tree"]["emitted_texts"] = line["tree"]["emitted_texts"][:1]
    line["num_tokens"] = 1
    page = parse(render_run_page(read_run(write_lines(tmp_path / "run.jsonl", [line]))))
    cells = [classes(cell) for cell in page.iter("td")]
    assert sum("accepted" in found for found in cells) == 1
    assert sum("own" in found for found in cells) == 0
    assert "1 accepted, 1 tokens" in words(page)


def test_labels_that_do_not_make_the_text_leave_it_as_it_is(run: TracedRun) -> None:
    """As where a character's bytes are several tokens: the text has it, and no token alone does."""
    tree = ProposedTree(emitted=[5], emitted_texts=["\ufffd"])
    line = run.rounds[0][0].model_copy(update={"tree": tree, "text": "\N{SNOWMAN}", "prompt_text": "a"})
    page = parse(render_run_page(replace(run, rounds=[[line]])))
    assert "".join(with_class(page, "text")[0].itertext()) == "a\N{SNOWMAN}"


def test_tokens_without_labels_are_numbers(run: TracedRun) -> None:
    tree = ProposedTree(draft="d", tokens=[4], parents=[-1], emitted=[5])
    line = run.rounds[0][0].model_copy(update={"tree": tree})
    page = parse(render_run_page(replace(run, rounds=[[line]])))
    assert {"#4", "#5"} <= {cell.text for cell in page.iter("td")}


@pytest.mark.parametrize("limit", ["MOST_DRAWN_ROUNDS", "MOST_DRAWN_NODES"])
def test_of_long_runs_a_beginning_is_drawn(run: TracedRun, limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_report, limit, 9)
    page = parse(render_run_page(run))
    (note,) = (words(found) for found in with_class(page, "note"))
    found = re.fullmatch(rf"The first (\d+) of {len(run.rounds)} rounds are drawn\.", note)
    assert found
    assert int(found[1]) == len(with_class(page, "round"))
    assert int(found[1]) == 9 or limit == "MOST_DRAWN_NODES"


@st.composite
def trees(draw: st.DrawFn) -> ProposedTree:
    parents = [draw(st.integers(-1, node - 1)) for node in range(draw(st.integers(0, 24)))]
    path: list[int] = []
    while below := [node for node, parent in enumerate(parents) if parent == (path[-1] if path else -1)]:
        if draw(st.booleans()):
            break
        path.append(draw(st.sampled_from(below)))
    emitted = [*path, 99][: draw(st.integers(0, len(path) + 1))]  # a node's token is its number
    return ProposedTree(draft="draft", tokens=list(range(len(parents))), parents=parents, path=path, emitted=emitted)


@given(trees())
def test_rows_hold_every_node_once_at_its_depth_and_the_text_is_the_first(tree: ProposedTree) -> None:
    rows = tree_rows(tree)
    depths = {node: row["indent"] + place for row in rows for place, node in enumerate(row["nodes"])}
    nodes = [node for row in rows for node in row["nodes"]]
    assert sorted(nodes) == sorted([*tree.tokens, *([OWN] if tree.own is not None else [])])
    for node, parent in enumerate(tree.parents):
        assert depths[node] == (depths[parent] + 1 if parent >= 0 else 0)
    first = [99 if node == OWN else node for node in (rows[0]["nodes"] if rows else [])]
    assert first[: len(tree.emitted)] == tree.emitted


def test_a_deep_chain_is_one_row() -> None:
    nodes = list(range(1024))
    tree = ProposedTree(draft="draft", tokens=[7] * 1024, parents=[-1, *nodes[:-1]], path=nodes, emitted=[7] * 1024)
    assert len(tree_rows(tree)) == 1


def test_white_space_has_marks_and_long_labels_end() -> None:
    def shown(text: str, most: int | None) -> list[tuple[str, bool]]:
        return [*label_pieces(text, most)]

    assert shown(" a\n\tb", 16) == [("·", True), ("a", False), ("↵", True), ("⇥", True), ("b", False)]
    assert shown("x" * 16, 16) == [("x" * 16, False)]
    assert shown("x" * 17, 16) == [("x" * 15, False), ("…", True)]
    assert shown("\ud800\u202e", 16) == [("\\ud800\\u202e", False)]
    assert shown("a b\n\tc", None) == [("a b", False), ("↵", True), ("\n", False), ("⇥", True), ("c", False)]
