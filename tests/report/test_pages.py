"""Pages of inspections, runs and cost reports: what they hold and escape, that they need nothing, and that they fit."""

import html
import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from browser import Browse, browser
from cost_questions import config_question
from published.model_cards import GPT_OSS_20B
from run_traces import run_lines, write_lines

from mxconv.cost.answers import Question, cost_report
from mxconv.cost.trace import ProposedTree
from mxconv.report import traced_run
from mxconv.report.cost_page import render_cost_page, report_tables
from mxconv.report.inspection import Inspection
from mxconv.report.inspection_page import render_inspection_page
from mxconv.report.tables import printable
from mxconv.report.traced_run import TracedRun, read_run, render_run_page
from mxconv.report.weight_statistics import Statistics

SCROLLS = (Path(__file__).parent / "probes/scrolls.js").read_text()
FRAMES = "<!DOCTYPE html><html><body style='margin:0'></body></html>"
DESK = (1265, 1280, 1300)  # the first is 1280 less a scroll bar
PHONE = 390
HOSTILE = "</script><script>alert(1)</script><!-- & \x1b[31m\u202e"

Inspect = Callable[..., Inspection]


def parse(page: str) -> ElementTree.Element:
    """The page is XML: every element is closed and every text escaped."""
    return ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>").strip())


def words(page: str) -> str:
    return " ".join("".join(parse(page).itertext()).split())


def rows_of(table: ElementTree.Element) -> list[list[str]]:
    """The texts of all rows; each is as wide as the head."""
    rows = [[" ".join((cell.text or "").split()) for cell in row] for row in table.iter("tr")]
    assert len({len(row) for row in rows}) == 1
    return rows


def cost_page(question: Question) -> str:
    return render_cost_page(question, cost_report(question))


def num_pictures(page: str) -> int:
    pictures = list(parse(page).iter("img"))
    assert all(image.get("src", "").startswith("data:image/svg+xml;base64,") for image in pictures)
    return len(pictures)


@pytest.fixture
def run(tmp_path: Path) -> TracedRun:
    return read_run(write_lines(tmp_path / "run.jsonl", run_lines()))


def hostile_pages(run: TracedRun, inspection: Inspection) -> dict[str, str]:
    """A page of each kind, with names and texts that no page must take at their word."""
    tree = ProposedTree(emitted=[5], emitted_texts=[HOSTILE])
    line = run.rounds[0][0].model_copy(update={"tree": tree, "text": HOSTILE, "prompt_text": HOSTILE})
    question = config_question()
    levels = question.strategies["bf16 <- mxfp4"]
    renamed = {"bf16": levels[:1], HOSTILE: [levels[0], replace(levels[1], name=HOSTILE, acceptance_source=HOSTILE)]}
    tensors = (replace(inspection.tensors[0], name=HOSTILE), *inspection.tensors[1:])
    return {
        "run": render_run_page(replace(run, rounds=[[line], *run.rounds[1:]])),
        "cost": cost_page(replace(question, strategies=renamed, models=["speedup", "roofline"])),
        "inspection": render_inspection_page(replace(inspection, tensors=tensors, groups=tensors, source=HOSTILE)),
    }


def test_pages_escape_names_and_texts_and_need_no_network_and_no_scripts(
    run: TracedRun, tiny_llama: Path, inspect_path: Inspect
) -> None:
    for page in hostile_pages(run, inspect_path(tiny_llama)).values():
        assert html.escape(printable(HOSTILE)) in page
        for word in ("<script", "</script", "<!--", "\x1b", "\u202e", "http:", "https:", "<link", "@import", "url("):
            assert word not in page.lower()
        assert 'name="viewport"' in page and "prefers-color-scheme: dark" in page
        assert len(page.encode()) < 1_000_000
        parse(page)


def test_a_config_gives_every_table_of_the_terminal_and_its_pictures() -> None:
    report, page = cost_report(config_question()), cost_page(config_question())
    assert {title.text for title in parse(page).iter("h3")} == {table.title for _, table in report_tables(report)}
    assert "8,030,261,248 parameters" in words(page)
    assert "Fastest: bsfp <- bsfp draft, 2.85 times bf16 at an assumed acceptance." in words(page)
    for entry in report["models"]:
        assert f"source: {entry['source']}" in words(page)
    assert num_pictures(page) == 3
    for table in parse(page).iter("table"):
        rows_of(table)
    experts = config_question(GPT_OSS_20B)
    assert num_pictures(cost_page(replace(experts, models=["roofline"]))) == 1
    assert num_pictures(cost_page(replace(experts, models=["throughput"]))) == 0


def test_an_inspection_has_a_row_a_tensor_the_totals_and_a_picture(tiny_llama: Path, inspect_path: Inspect) -> None:
    inspection = inspect_path(tiny_llama)
    page = render_inspection_page(inspection)
    groups, tensors = map(rows_of, parse(page).iter("table"))
    assert len(groups) == len(inspection.groups) + 2
    assert [row[0].partition(" ")[0] for row in tensors[1:]] == [tensor.name for tensor in inspection.tensors]
    assert inspection.total.drafts is not None
    assert f"{inspection.total.drafts.bsfp_bits_per_weight:.2f}" in groups[-1]
    assert f"{inspection.total.mxfp4_sqnr_db:.2f}" in groups[-1]
    figures = {div[0].text: div[1].text for div in parse(page).findall(".//dl/div")}
    assert figures["weights"] == f"{inspection.total.num_weights:,}"
    assert num_pictures(page) == 1


@pytest.mark.parametrize("glob", ["positions", "zeros*"])
def test_a_checkpoint_without_anything_to_count_still_makes_a_page(
    glob: str, odd_checkpoint: Path, inspect_path: Inspect
) -> None:
    assert "No weight to count" in words(render_inspection_page(inspect_path(odd_checkpoint, tensor_glob=glob)))


def test_a_package_has_columns_of_what_it_stores_and_tensors_say_below_their_names_what_they_are(
    tiny_llama: Path, inspect_path: Inspect, package: Callable[..., Path]
) -> None:
    inspection = inspect_path(package(tiny_llama, codec="bsfp", segments="paper"))
    tensors = rows_of(list(parse(render_inspection_page(inspection)).iter("table"))[-1])
    counted, drafts = ["weights", "max |w|", "window", "outside"], ["BSFP bits", "BSFP dB", "paper dB", "MXFP4 dB"]
    assert tensors[0][1:] == [*counted, "stored bits", "draft dB", *drafts]
    names = [row[0] for row in tensors]
    assert "model.layers.0.mlp.up_proj.weight BF16 172 × 64, bsfp, matrix" in names
    assert "model.norm.weight BF16 64, keep, not a matrix" in names
    for row, (_, *_, stored, draft, fitted, _, paper, _) in zip(inspection.tensors, tensors[1:], strict=True):
        if row.stored is not None and row.drafts is not None:
            assert stored == f"{row.drafts.bsfp_paper_bits_per_weight:.2f}" != fitted
            assert draft == paper
    plain = rows_of(list(parse(render_inspection_page(inspect_path(tiny_llama))).iter("table"))[-1])
    assert plain[0][1:] == [*counted, *drafts]


def rounds_on(page: str) -> list[list[str]]:
    """The rows of the tables of rounds, their texts as they are."""
    tables = [table for table in parse(page).iter("table") if next(table.iter("th")).text == "added to the text"]
    return [[cell.text or "" for cell in row] for table in tables for row in list(table.iter("tr"))[1:]]


def test_a_run_has_every_round_with_its_tokens_and_what_became_of_its_nodes(run: TracedRun) -> None:
    targets = [line for line in run_lines() if line["level"] == "target"]
    page = render_run_page(run)
    rows = rounds_on(page)
    assert len(rows) == len(targets) > 10
    for line, (added, *found) in zip(targets, rows, strict=True):
        tree = line["tree"]
        assert found == [str(line["round"]), tree["draft"] or "", str(len(tree["tokens"])), str(len(tree["path"]))]
        *texts, own = tree["emitted_texts"]  # none of these texts ends among guesses
        assert added == printable(" | ".join([*texts, f"[{own}]"]))
    assert [title.text for title in parse(page).iter("h2")] == ["Prompt 1", "Prompt 2", "Prompt 3"]


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


def test_a_trace_without_trees_says_why_rounds_are_missing_and_of_a_long_one_the_first_are_shown(
    run: TracedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = ("tree", "num_tokens", "text", "prompt_text", "num_nodes")
    lines = [{key: value for key, value in line.items() if key not in later} for line in run_lines()]
    page = render_run_page(read_run(write_lines(tmp_path / "old.jsonl", lines)))
    assert "This trace has no trees: an earlier version wrote it." in words(page)
    assert "token-recycling" in words(page) and rounds_on(page) == []
    monkeypatch.setattr(traced_run, "MOST_ROUNDS", 9)
    page = render_run_page(run)
    assert f"The page has the first 9 of {len(run.rounds)} rounds." in words(page)
    assert len(rounds_on(page)) == 9


@pytest.fixture
def browse(tmp_path: Path) -> Browse:
    return browser(tmp_path)


def seen_at(browse: Browse, page: str, widths: tuple[int, ...]) -> list[dict[str, Any]]:
    seen = browse(FRAMES, SCROLLS.replace("PAGE", json.dumps(page)).replace("WIDTHS", json.dumps(widths)))
    assert [found["width"] for found in seen.found] == list(widths)
    return list(seen.found)


def enlarged(inspection: Inspection) -> Inspection:
    """The same with names and counts of a model of billions of weights."""

    def large(row: Statistics) -> Statistics:
        exponents = row.exponents
        if exponents is not None:
            fields = exponents.fields * 100_000
            fields[[0, 1]] += 12_345  # outside the window
            exponents = replace(exponents, fields=fields)
        name = row.name.replace("layers.0.", "layers.31.")
        return replace(row, name=name, num_weights=row.num_weights * 100_000, exponents=exponents)

    rows = {"tensors": tuple(map(large, inspection.tensors)), "groups": tuple(map(large, inspection.groups))}
    return replace(inspection, **rows, total=large(inspection.total))  # type: ignore[arg-type]


@pytest.mark.slow
def test_on_a_desk_nothing_needs_scrolling_and_on_a_phone_only_tables_do(
    browse: Browse, run: TracedRun, tiny_llama: Path, inspect_path: Inspect, package: Callable[..., Path]
) -> None:
    page = render_inspection_page(enlarged(inspect_path(package(tiny_llama, codec="bsfp"))))
    for found in seen_at(browse, page, (*DESK, PHONE)):
        assert any(name.startswith("model.layers.31.self_attn.o_proj.weight") for name in found["names"])
        assert found["page"] <= 0
        assert len(found["tables"]) == 2
        if found["width"] == PHONE:
            assert min(found["tables"]) > 0
        else:
            assert max(found["tables"]) <= 0, found["width"]
    for found in seen_at(browse, render_run_page(run), (DESK[0], PHONE)):
        assert found["page"] <= 0
        assert len(found["tables"]) == 6  # levels, two drafts by depth, three prompts
        assert found["width"] == PHONE or max(found["tables"]) <= 0
