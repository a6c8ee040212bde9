"""The page of a run in a browser: boxes of a tree do not touch, and the page itself never scrolls sideways."""

from pathlib import Path

import pytest
from browser import Browse, browser
from run_traces import run_lines, write_lines

from mxconv.report.run_report import render_run_page
from mxconv.report.traced_run import read_run

LOOK = (Path(__file__).parent / "probes" / "trees.js").read_text()


@pytest.fixture
def browse(tmp_path: Path) -> Browse:
    return browser(tmp_path)


@pytest.mark.parametrize("width", [500, 1280])
def test_trees_are_laid_out_by_depth_and_nothing_overlaps(browse: Browse, tmp_path: Path, width: int) -> None:
    page = render_run_page(read_run(write_lines(tmp_path / "run.jsonl", run_lines())))
    seen = browse(page, LOOK, width=width)
    assert seen.console == []
    assert seen.found["wide"] <= 0
    trees = [line["tree"] for line in run_lines() if "tree" in line]
    assert len(seen.found["trees"]) == len(trees)
    for boxes, tree in zip(seen.found["trees"], trees, strict=True):
        assert len(boxes) == len(tree["tokens"]) + 1  # the target's own
        for index, box in enumerate(boxes):
            assert box["right"] - box["left"] > 4 and box["bottom"] - box["top"] > 8
            for other in boxes[:index]:
                apart = (
                    box["left"] >= other["right"] or other["left"] >= box["right"],
                    box["top"] >= other["bottom"] or other["top"] >= box["bottom"],
                )
                assert any(apart), (box, other)
        line = [box for box in boxes if box["kind"] in ("accepted", "own")]
        assert [box["kind"] for box in line] == [*["accepted"] * len(tree["path"]), "own"]
        assert len({box["top"] for box in line}) == 1
        assert [box["left"] for box in line] == sorted(box["left"] for box in line)
