"""The page and the tables of a cost report: what they hold, what they escape, what they need."""

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from published.model_cards import GPT_OSS_20B, LLAMA_3_1_8B

from mxconv.arch.fields import Fields
from mxconv.arch.model_sizes import ModelSizes
from mxconv.cost.answers import Question, cost_report
from mxconv.cost.hardware import open_hardware
from mxconv.cost.levels import Workload, strategies_of, with_acceptance
from mxconv.cost.package_levels import package_levels, package_strategies
from mxconv.cost.trace import read_trace
from mxconv.package.package import Package
from mxconv.report.cost_picture import DESCRIPTIONS, render_cost_page
from mxconv.report.cost_tables import report_tables


def config_question(config: dict[str, object] = LLAMA_3_1_8B, name: str = "h100-sxm") -> Question:
    architecture = ModelSizes.from_fields(Fields(config, "config.json"))
    return Question(architecture, strategies_of(architecture), open_hardware(name))


def package_question(folder: Path, traces: Path) -> Question:
    """Of a package, with one trace by its target alone and one with its 4-bit draft."""
    with Package(folder) as package:
        levels = package_levels(package)
    draft = levels[1].name
    greedy = [_line(number, "target", 0, 0, 1, 0.02) for number in range(30)]
    drafted = []
    for number in range(30):
        drafted.append(_line(number, "target", 0, 0, 1, 0.03))
        drafted.append(_line(number, draft, 4, number % 5, 4, 0.02))
    for name, lines in (("greedy", greedy), ("drafted", drafted)):
        (traces / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = [read_trace(traces / f"{name}.jsonl") for name in ("greedy", "drafted")]
    measured = {draft: found[1].levels[1].acceptance}
    strategies = {
        name: with_acceptance(own, measured, "trace drafted") for name, own in package_strategies(levels).items()
    }
    architecture = levels[0].architecture
    assert architecture is not None
    workload = Workload(context=64, kv_dtype="fp32")
    return Question(architecture, strategies, open_hardware("core-ultra-9-285k"), workload, traces=found)


def _line(number: int, level: str, num_proposed: int, num_accepted: int, num_forwards: int, seconds: float) -> object:
    counts = {"num_proposed": num_proposed, "num_accepted": num_accepted, "num_forwards": num_forwards}
    return {"prompt": 0, "round": number, "level": level, "seconds": seconds} | counts


def rendered(question: Question) -> str:
    return render_cost_page(question, cost_report(question))


def parse(page: str) -> ElementTree.Element:
    """The page is XML: every element is closed and every name escaped."""
    return ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>").strip())


def words(page: str) -> str:
    return " ".join("".join(parse(page).itertext()).split())


def pictures(page: str) -> list[str]:
    return [image.get("alt", "") for image in parse(page).iter("img")]


def predicted(report: dict[str, Any]) -> str:
    return " ".join(next(table.lines for name, table in report_tables(report) if name == "predictions"))


@pytest.fixture(scope="module")
def page() -> str:
    return rendered(config_question())


def test_a_config_gives_every_table_of_the_terminal_and_its_pictures(page: str) -> None:
    report = cost_report(config_question())
    titles = {title.text for title in parse(page).iter("h3")}
    assert titles == {table.title for _, table in report_tables(report)}
    assert "8,030,261,248 parameters" in words(page)
    assert "Fastest: bsfp <- bsfp draft, 2.85 times bf16 at an assumed acceptance." in words(page)
    for entry in report["models"]:
        assert f"source: {entry['source']}" in words(page)
    assert len(pictures(page)) == 4
    for table in parse(page).iter("table"):
        assert len({len(row) for row in table.iter("tr")}) == 1


def test_traces_are_on_the_page_and_the_mean_error_leaves_out_targets_that_the_cache_holds(
    tiny_llama: Path, package: Callable[..., Path], tmp_path: Path
) -> None:
    question = replace(package_question(package(tiny_llama, codec="bsfp"), tmp_path), models=["roofline"])
    assert "drafted, acceptance by position: 0.828, 0.750, 0.667, 0.500" in words(rendered(question))

    def report(cache: int | None) -> dict[str, Any]:
        return cost_report(replace(question, hardware=replace(question.hardware, last_level_cache_bytes=cache)))

    unknown, small, large = report(None), report(1), report(33_000_000)
    assert "so targets that fit a cache count too" in predicted(unknown)
    rows = small["predictions"]["strategies"]
    mean = sum(abs(row["error"]) for row in rows) / 2
    assert predicted(small).endswith(f"Mean error {mean:.1%} over 2 traces")
    assert large["predictions"]["mean_error"] is None
    assert "No mean error; 2 left out, whose target fits the cache of 33 MB" in predicted(large)


def test_the_page_needs_no_network_and_no_scripts(page: str) -> None:
    for word in ("http:", "https:", "<link", "<script", "@import", "url(", 'src="/'):
        assert word not in page
    assert 'name="viewport"' in page
    assert "prefers-color-scheme: dark" in page
    assert len(page.encode()) < 1_000_000


def test_hostile_names_stay_words() -> None:
    question = config_question()
    hostile = "</script><script>alert(1)</script> & \x1b[31m"
    levels = question.strategies["bf16 <- mxfp4"]
    renamed = [levels[0], replace(levels[1], name=hostile, acceptance_source=hostile)]
    page = rendered(replace(question, strategies={"bf16": levels[:1], hostile: renamed}, models=["roofline"]))
    assert "<script>alert" not in page
    assert "\x1b" not in page
    assert "</script><script>alert(1)</script> & \\x1b[31m" in words(page)


def test_only_what_was_asked_for_is_drawn_and_a_mixture_of_experts_has_no_throughput() -> None:
    question = config_question(GPT_OSS_20B)
    assert pictures(rendered(replace(question, models=["roofline"]))) == [DESCRIPTIONS["roofline"]]
    assert pictures(rendered(replace(question, models=["throughput"]))) == []
