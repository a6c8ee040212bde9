"""The page of a run: it tells what was decoded, and shows every token as text."""

import html
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest
from run_traces import run_lines, write_lines

from mxconv.cost.trace import ProposedTree
from mxconv.report import run_report
from mxconv.report.run_report import render_run_page
from mxconv.report.tables import printable
from mxconv.report.traced_run import TracedRun, read_run


@pytest.fixture
def run(tmp_path: Path) -> TracedRun:
    return read_run(write_lines(tmp_path / "run.jsonl", run_lines()))


def parse(page: str) -> ElementTree.Element:
    """The page is XML: every element is closed and every text escaped."""
    return ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>").strip())


def words(element: ElementTree.Element) -> str:
    return " ".join("".join(element.itertext()).split())


def rounds_on(page: str) -> list[list[str]]:
    """The rows of the tables of rounds."""
    tables = [table for table in parse(page).iter("table") if next(table.iter("th")).text == "added to the text"]
    return [[cell.text or "" for cell in row] for table in tables for row in list(table.iter("tr"))[1:]]


def test_every_round_is_there_with_its_tokens_and_what_became_of_its_nodes(run: TracedRun) -> None:
    targets = [line for line in run_lines() if line["level"] == "target"]
    rows = rounds_on(render_run_page(run))
    assert len(rows) == len(targets) > 10
    for line, (added, *found) in zip(targets, rows, strict=True):
        tree = line["tree"]
        assert found == [str(line["round"]), tree["draft"] or "", str(len(tree["tokens"])), str(len(tree["path"]))]
        *texts, own = tree["emitted_texts"]  # none of these texts ends among guesses
        assert added == printable(" | ".join([*texts, f"[{own}]"]))
    assert [words(title) for title in parse(render_run_page(run)).iter("h2")] == ["Prompt 1", "Prompt 2", "Prompt 3"]


def test_the_page_escapes_tokens_and_prompts_and_needs_nothing_else(run: TracedRun) -> None:
    hostile = "</script><script>alert(1)</script><!--\x1b[31m\u202e"
    tree = ProposedTree(emitted=[5], emitted_texts=[hostile])
    line = run.rounds[0][0].model_copy(update={"tree": tree, "text": hostile, "prompt_text": hostile})
    page = render_run_page(replace(run, rounds=[[line], *run.rounds[1:]]))
    for word in (
        "<script",
        "</script",
        "<!--",
        "\x1b",
        "\u202e",
        "http:",
        "https:",
        "<link",
        "@import",
        "url(",
        "src=",
    ):
        assert word not in page
    assert page.count(html.escape(printable(hostile))) == 2
    assert 'name="viewport"' in page and "prefers-color-scheme: dark" in page


def test_a_trace_without_trees_has_its_tables_and_says_why_rounds_are_missing(tmp_path: Path) -> None:
    later = ("tree", "num_tokens", "text", "prompt_text", "num_nodes")
    lines = [{key: value for key, value in line.items() if key not in later} for line in run_lines()]
    page = render_run_page(read_run(write_lines(tmp_path / "run.jsonl", lines)))
    assert "This trace has no trees: an earlier version wrote it." in words(parse(page))
    assert "token-recycling" in words(parse(page)) and rounds_on(page) == []


@pytest.mark.parametrize(
    ("tree", "text", "added"),
    [
        # as where a character's bytes are several tokens: the text has it, and no token alone does
        (ProposedTree(emitted=[5], emitted_texts=["\ufffd"]), "\N{SNOWMAN}", "\N{SNOWMAN}"),
        (ProposedTree(draft="d", tokens=[4], parents=[-1], emitted=[5]), "whole", "whole"),  # no labels
        (ProposedTree(draft="d", tokens=[4], parents=[-1], path=[0], emitted=[4], emitted_texts=["a"]), "a", "a"),
    ],
)
def test_what_a_round_added_where_labels_do_not_say_it_or_the_text_ended(
    run: TracedRun, tree: ProposedTree, text: str, added: str
) -> None:
    line = run.rounds[0][0].model_copy(update={"tree": tree, "text": text})
    assert [row[0] for row in rounds_on(render_run_page(replace(run, rounds=[[line]])))] == [added]


def test_of_long_runs_the_first_rounds_are_shown(run: TracedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_report, "MOST_ROUNDS", 9)
    page = render_run_page(run)
    assert f"The page has the first 9 of {len(run.rounds)} rounds." in words(parse(page))
    assert len(rounds_on(page)) == 9
