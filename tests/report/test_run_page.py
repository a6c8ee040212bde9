"""The page of a run: what it draws is what was decoded, and a token is never taken at its word."""

import copy
import html
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest
from run_traces import HOSTILE, run_lines, write_lines

from mxconv.report import run_page
from mxconv.report.run import PromptRun, Run, Tree, read_run
from mxconv.report.run_page import render_run_page, write_run_page
from mxconv.report.visible import MARKS, Piece, label_pieces, text_pieces

KINDS = ("stood", "fell", "own")


@pytest.fixture
def run(tmp_path: Path) -> Run:
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


def test_every_node_of_every_round_is_drawn_once_and_as_what_became_of_it(run: Run) -> None:
    page = parse(render_run_page(run))
    drawn = {kind: sum(kind in classes(cell) for cell in with_class(page, "cell")) for kind in KINDS}
    targets = [line["tree"] for line in run_lines() if line["level"] == "target"]
    stood = sum(len(tree["path"]) for tree in targets)
    assert stood > 10
    assert drawn == {
        "stood": stood,
        "fell": sum(len(tree["tokens"]) for tree in targets) - stood,
        "own": len(targets),  # none of these texts ends among guesses
    }


def test_the_text_is_told_as_it_was_written(run: Run) -> None:
    page = parse(render_run_page(run))
    found = ["".join(text.itertext()) for text in with_class(page, "text")]
    assert len(found) == 3
    for prompt, text in zip(run.prompts, found, strict=True):
        expected = prompt.text + "".join(each.text for each in prompt.rounds)
        shown = text.replace("↵\n", "\n").replace("⇥", "\t").replace("\\x1b", "\x1b").replace("\\u202e", "\u202e")
        assert shown == expected
        assert len(expected) > 28


def test_tokens_are_escaped_and_white_space_shows(run: Run) -> None:
    page = render_run_page(run)
    assert all(any(token in tree.texts for each in run.rounds if (tree := each.tree)) for token in HOSTILE[:4])
    assert "<script" not in page and "</script" not in page and "<!--" not in page
    assert "\x1b" not in page and "\u202e" not in page
    assert html.escape("</script><script>alert(1)</script>") in page
    marks = {mark.text for mark in with_class(parse(page), "mark")}
    assert set(MARKS.values()) <= marks


def test_the_page_needs_nothing_else(run: Run, tmp_path: Path) -> None:
    write_run_page(run, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text("utf-8")
    for word in ("http:", "https:", "<link", "@import", "url(", "src=", "<script"):
        assert word not in page
    assert 'name="viewport"' in page
    assert "prefers-color-scheme: dark" in page


def test_links_of_the_text_lead_to_their_rounds(run: Run) -> None:
    page = parse(render_run_page(run))
    ids = [element.get("id") for element in page.iter() if element.get("id")]
    links = [link.get("href", "") for link in page.iter("a")]
    assert len(ids) == len(set(ids)) == run.num_rounds
    assert [f"#{name}" for name in ids] == links


def test_a_trace_without_trees_has_its_tables_and_says_why_nothing_is_drawn(tmp_path: Path) -> None:
    later = ("tree", "num_tokens", "text", "prompt_text", "num_nodes")
    lines = [{key: value for key, value in line.items() if key not in later} for line in run_lines()]
    page = parse(render_run_page(read_run(write_lines(tmp_path / "run.jsonl", lines))))
    assert "This trace tells no trees: it was written by a version before they were recorded." in words(page)
    assert "token-recycling" in words(page)
    assert not with_class(page, "round")


def test_a_text_that_ends_among_guesses_has_no_token_of_the_targets_own(tmp_path: Path) -> None:
    line = copy.deepcopy(next(line for line in run_lines() if len(line.get("tree", {}).get("path", [])) == 2))
    line["tree"]["emitted"] = line["tree"]["emitted"][:1]
    line["tree"]["emitted_texts"] = line["tree"]["emitted_texts"][:1]
    line["num_tokens"] = 1
    page = parse(render_run_page(read_run(write_lines(tmp_path / "run.jsonl", [line]))))
    cells = [classes(cell) for cell in with_class(page, "cell")]
    assert sum("stood" in found for found in cells) == 1
    assert sum("own" in found for found in cells) == 0
    assert "1 stood, 1 token" in words(page)


def test_labels_that_do_not_make_the_text_leave_it_as_it_is(run: Run) -> None:
    """As where a character's bytes are several tokens: the text has it, and no token alone does."""
    (first, *_), tree = run.prompts[0].rounds, Tree(None, [], [], [], [], [5], [], ["\ufffd"])
    found = replace(run, prompts=[PromptRun(0, "a", [replace(first, tree=tree, text="\N{SNOWMAN}")])])
    page = parse(render_run_page(found))
    assert "".join(with_class(page, "text")[0].itertext()) == "a\N{SNOWMAN}"


def test_tokens_without_labels_are_numbers(run: Run) -> None:
    (first, *_), tree = run.prompts[0].rounds, Tree("d", [4], [-1], [], [], [5], [], [])
    page = parse(render_run_page(replace(run, prompts=[PromptRun(0, "", [replace(first, tree=tree)])])))
    assert {"#4", "#5"} <= {cell[0].text for cell in with_class(page, "cell")}


@pytest.mark.parametrize("limit", ["MOST_DRAWN_ROUNDS", "MOST_DRAWN_NODES"])
def test_of_long_runs_a_beginning_is_drawn(run: Run, limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_page, limit, 9)
    page = parse(render_run_page(run))
    (note,) = (words(found) for found in with_class(page, "note"))
    told = re.fullmatch(rf"The first (\d+) of {run.num_rounds} rounds are drawn\.", note)
    assert told
    assert int(told[1]) == len([element for element in page.iter() if (element.get("id") or "").startswith("r")])
    assert int(told[1]) == 9 or limit == "MOST_DRAWN_NODES"


def test_white_space_has_marks_and_long_labels_end() -> None:
    assert label_pieces(" a\n\tb", 16) == [
        Piece("·", True), Piece("a", False), Piece("↵⇥", True), Piece("b", False),
    ]  # fmt: skip
    assert label_pieces("x" * 16, 16) == [Piece("x" * 16, False)]
    assert label_pieces("x" * 17, 16) == [Piece("x" * 15, False), Piece("…", True)]
    assert label_pieces("\ud800\u202e", 16) == [Piece("\\ud800\\u202e", False)]
    assert text_pieces("a b\n\tc") == [
        Piece("a b", False), Piece("↵", True), Piece("\n", False), Piece("⇥", True), Piece("c", False),
    ]  # fmt: skip
