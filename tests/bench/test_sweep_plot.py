"""The picture of a sweep: which maps it has, what stands on them, which cells are marked."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mxconv.kernels._native", reason="the extension is not built on this machine")

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from mxconv.bench.machine import Machine
from mxconv.bench.sweep import RoundCosts, Sweep
from mxconv.bench.sweep_plot import write_sweep

MACHINE = Machine("A processor", 2, "GCC 12", None)
SWEEP = Sweep(
    level="mxfp4", num_draft_tokens=[8, 16], confidence=[0.0, 0.3, 0.6],
    speedup=[[9.0] * 3] * 2,
    decode_speedup=[[1.11, 1.48, 1.33], [0.42, 1.21, 1.44]],
    predicted_speedup=[[1.05, 1.36, 1.52], [0.61, 1.25, 1.39]],
    acceptance=0.815, costs=RoundCosts(0.3, 0.9, 0.125),
    acceptance_rate=[[0.81, 0.91, 0.71], [0.55, None, 0.99]], tokens_per_round=[[1.0] * 3] * 2, target="target",
)  # fmt: skip


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Every figure that is saved."""
    found: list[Figure] = []
    save = Figure.savefig

    def keep(self: Figure, *arguments: Any, **options: Any) -> None:
        found.append(self)
        save(self, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", keep)
    return found


def maps(figure: Figure) -> dict[str, Axes]:
    return {axes.get_title(): axes for axes in figure.axes if axes.get_title()}


def numbers(axes: Axes) -> dict[tuple[float, float], str]:
    """What stands in each cell, by place from the left and from below."""
    return {text.get_position(): text.get_text() for text in axes.texts}


def squares(axes: Axes) -> dict[str, tuple[float, float]]:
    """Where the middle of each lies."""
    found = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    middles = {str(p.get_label()): (p.get_x() + p.get_width() / 2, p.get_y() + p.get_height() / 2) for p in found}
    return {label: (round(x, 6), round(y, 6)) for label, (x, y) in middles.items()}


def test_measured_and_predicted_stand_side_by_side_on_one_scale(figures: list[Figure], tmp_path: Path) -> None:
    write_sweep(SWEEP, MACHINE, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    found = maps(figures[0])
    measured, predicted = found["measured, behind the prompts"], found["predicted"]
    assert numbers(measured) == {
        (0, 0): "1.11", (1, 0): "1.48", (2, 0): "1.33", (0, 1): "0.42", (1, 1): "1.21", (2, 1): "1.44",
    }  # fmt: skip
    assert numbers(predicted) == {
        (0, 0): "1.05", (1, 0): "1.36", (2, 0): "1.52", (0, 1): "0.61", (1, 1): "1.25", (2, 1): "1.39",
    }  # fmt: skip
    assert measured.images[0].norm is predicted.images[0].norm
    assert measured.images[0].get_cmap() == predicted.images[0].get_cmap()
    assert measured.images[0].get_clim() == pytest.approx((0.42, 1 / 0.42))  # plain decoding is in the middle
    for axes in (measured, predicted):
        assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "0.3", "0.6"]
        assert [label.get_text() for label in axes.get_yticklabels()] == ["8", "16"]
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("confidence threshold", "draft tokens a round, at most")
    left, right = measured.get_position(), predicted.get_position()
    assert left.x1 < right.x0
    assert left.y0 == pytest.approx(right.y0)


def test_acceptance_and_error_stand_below(figures: list[Figure], tmp_path: Path) -> None:
    write_sweep(SWEEP, MACHINE, tmp_path / "picture.png")
    found = maps(figures[0])
    assert numbers(found["accepted / proposed"])[0, 1] == "0.55"
    assert (1, 1) not in numbers(found["accepted / proposed"])  # nothing was proposed there
    (title,) = (title for title in found if "mean" in title)
    assert title == "predicted / measured - 1: mean 13%, worst +45%"
    assert numbers(found[title])[0, 1] == "+45%"
    assert numbers(found[title])[1, 0] == "-8%"


def test_speqs_default_and_both_best_cells_are_marked(figures: list[Figure], tmp_path: Path) -> None:
    write_sweep(SWEEP, MACHINE, tmp_path / "picture.png")
    found = maps(figures[0])
    expected = {"SPEQ's default (16, 0.6)": (2, 1), "fastest measured": (1, 0), "fastest predicted": (2, 0)}
    assert squares(found["measured, behind the prompts"]) == squares(found["predicted"]) == expected
    assert {text.get_text() for text in figures[0].legends[0].get_texts()} == set(expected)


def test_a_grid_without_speqs_default_has_no_square_for_it(figures: list[Figure], tmp_path: Path) -> None:
    write_sweep(replace(SWEEP, num_draft_tokens=[8, 15]), MACHINE, tmp_path / "picture.png")
    assert set(squares(maps(figures[0])["predicted"])) == {"fastest measured", "fastest predicted"}


def test_what_it_was_predicted_from_and_the_machine_are_named(figures: list[Figure], tmp_path: Path) -> None:
    write_sweep(SWEEP, MACHINE, tmp_path / "picture.png")
    texts = {text.get_text() for text in figures[0].findobj(matplotlib.text.Text)}
    assert "mxfp4 below target: length and threshold, 2 threads, A processor" in texts
    assert any(
        "acceptance 0.815 and" in text and "0.30 for a draft" in text and "0.90 + 0.125 n" in text for text in texts
    )
    assert "nan" not in texts


@pytest.mark.parametrize("measured", [SWEEP.decode_speedup, [[None] * 3] * 2])
def test_without_a_prediction_only_the_left_side_is_drawn(measured: Any, figures: list[Figure], tmp_path: Path) -> None:
    sweep = replace(SWEEP, decode_speedup=measured, predicted_speedup=[[None] * 3] * 2, acceptance=None)
    write_sweep(sweep, MACHINE, tmp_path / "picture.png")
    assert set(maps(figures[0])) == {"measured, behind the prompts", "accepted / proposed"}
