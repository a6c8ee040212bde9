"""The pages of inspections and runs in a browser: what fits, on a desk and on a phone."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from browser import Browse, browser
from run_traces import run_lines, write_lines

from mxconv.report.inspection import Inspection
from mxconv.report.inspection_page import render_inspection_page as render_page
from mxconv.report.run_report import render_run_page
from mxconv.report.traced_run import read_run
from mxconv.report.weight_statistics import Statistics

PROBES = Path(__file__).parent / "probes"
SCROLLS = (PROBES / "scrolls.js").read_text()
FRAMES = "<!DOCTYPE html><html><body style='margin:0'></body></html>"
DESK = (1265, 1280, 1300)  # the first is 1280 less a scroll bar
PHONE = 390
LONGEST = "model.layers.31.self_attn.o_proj.weight"

Inspect = Callable[..., Inspection]


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

    return replace(
        inspection,
        tensors=tuple(map(large, inspection.tensors)),
        groups=tuple(map(large, inspection.groups)),
        total=large(inspection.total),
    )


def test_on_a_desk_nothing_needs_scrolling_and_on_a_phone_only_tables_do(
    browse: Browse, tiny_llama: Path, inspect_path: Inspect, package: Callable[..., Path]
) -> None:
    page = render_page(enlarged(inspect_path(package(tiny_llama, codec="bsfp"))))
    for found in seen_at(browse, page, (*DESK, PHONE)):
        assert any(name.startswith(LONGEST) for name in found["names"])
        assert found["page"] <= 0
        assert len(found["tables"]) == 2
        if found["width"] == PHONE:
            assert min(found["tables"]) > 0
        else:
            assert max(found["tables"]) <= 0, found["width"]


def test_the_page_of_a_run_fits_a_desk_and_a_phone(browse: Browse, tmp_path: Path) -> None:
    page = render_run_page(read_run(write_lines(tmp_path / "run.jsonl", run_lines())))
    for found in seen_at(browse, page, (DESK[0], PHONE)):
        assert found["page"] <= 0
        assert len(found["tables"]) == 6  # levels, two drafts by depth, three prompts
        assert found["width"] == PHONE or max(found["tables"]) <= 0
