"""What stands below the table of predictions: the mean error, and whose it is not."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cost_pages import package_question

from mxconv.cost.report import Question, cost_report
from mxconv.report.cost_page import render_cost_page
from mxconv.report.cost_tables import report_tables

UNKNOWN = "the machine's description has no last_level_cache_bytes, so what fits a cache counts too"


@pytest.fixture
def question(tiny_llama: Path, package: Callable[..., Path], tmp_path: Path) -> Question:
    """Two traces of one package."""
    return package_question(package(tiny_llama, codec="bsfp"), tmp_path)


def with_cache(question: Question, num_bytes: int | None) -> Question:
    return replace(question, hardware=replace(question.hardware, last_level_cache_bytes=num_bytes))


def words_of(report: dict[str, Any]) -> list[str]:
    return next(table.lines for name, table in report_tables(report) if name == "predictions")


def test_a_machine_without_a_described_cache_counts_all_and_says_so(question: Question) -> None:
    report = cost_report(with_cache(question, None))
    mean = report["predictions"]["mean_error"]
    assert words_of(report) == [f"Mean error {mean:.1%} over 2 traces; {UNKNOWN}"]


def test_targets_larger_than_the_cache_are_counted(question: Question) -> None:
    report = cost_report(with_cache(question, 1))
    rows = report["predictions"]["strategies"]
    mean = sum(abs(row["error"]) for row in rows) / 2
    assert words_of(report) == [f"Mean error {mean:.1%} over 2 traces"]


def test_where_the_cache_holds_every_target_there_is_no_mean(question: Question) -> None:
    asked = with_cache(question, 33_000_000)
    report = cost_report(asked)
    assert report["predictions"]["mean_error"] is None
    rows = report["predictions"]["strategies"]
    assert all(row["fits_cache"] for row in rows)
    read = f"{rows[0]['num_bytes'] / 1e6:.3g} MB"
    lines = words_of(report)
    assert lines == [
        "No mean error: 2 of 2 traces fit the cache of 33 MB",
        "A pass of the target reads from that cache, whose speed the roofline does not know: "
        f"greedy {read}, drafted {read}",
    ]
    page = render_cost_page(asked, report)
    assert all(f"<p>{line}</p>" in page for line in lines)
    del rows[1]
    assert words_of(report)[0] == "No mean error: 1 of 1 trace fits the cache of 33 MB"


@pytest.mark.parametrize(
    ("fitting", "said"),
    [
        (1, "Mean error 12.6% over 3 traces; 1 fits the cache of 33 MB and is left out"),
        (3, "Mean error 12.6% over 1 trace; 3 fit the cache of 33 MB and are left out"),
    ],
)
def test_what_is_left_out_is_counted_too(question: Question, fitting: int, said: str) -> None:
    report = cost_report(with_cache(question, 33_000_000))
    predictions = report["predictions"]
    row = predictions["strategies"][0]
    predictions["strategies"] = [row | {"fits_cache": index < fitting} for index in range(4)]
    predictions["mean_error"] = 0.126
    lines = words_of(report)
    assert lines[0] == said
    assert lines[1].count("greedy") == fitting
