"""Pictures of decodes: what stands on them, whatever is missing from the figures."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mxconv.kernels._native", reason="the extension is not built on this machine")

import matplotlib
from matplotlib.figure import Figure

from mxconv.bench.decode_plot import write_acceptance_by_position, write_acceptance_by_prompt
from mxconv.bench.decode_result import DecodeResult
from mxconv.bench.machine import Machine

MACHINE = Machine("A processor", 2, "GCC 12", None)


def result(strategy: str, by_prompt: dict[str, list[float | None]], **changes: Any) -> DecodeResult:
    rates = [[rate for rate in rates if rate is not None] for rates in by_prompt.values()]
    values: dict[str, Any] = {
        "strategy": strategy, "levels": ["target", *by_prompt], "num_prompts": 3, "num_tokens": 96,
        "tokens_per_second": 10.0, "speedup": 1.5, "speedup_by_prompt": [1.5] * 3, "tokens_per_round": 2.0,
        "acceptance_rates": [sum(found) / len(found) if found else None for found in rates],
        "acceptance_by_prompt": list(by_prompt.values()),
        "acceptance_by_position": [[0.9, 0.5] if found else [] for found in rates],
        "decode_speedup": 1.6,
        "num_bytes": 1, "read_bandwidth": 10.0, "fraction_of_bandwidth": 0.9, "identical_to_greedy": True,
    }  # fmt: skip
    return DecodeResult(**(values | changes))


RESULTS = [
    result("greedy", {}),
    result("mxfp4", {"mxfp4": [0.5, 1.0, 0.75]}),
    result("hierarchy", {"mxfp4": [0.4, 0.9, None], "small $x$": [None, None, None]}),
]


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


def texts(figure: Figure) -> set[str]:
    return {text.get_text() for text in figure.findobj(matplotlib.text.Text)}  # type: ignore[attr-defined]


@pytest.mark.parametrize("write", [write_acceptance_by_prompt, write_acceptance_by_position])
def test_each_strategy_with_a_draft_has_a_panel(
    write: Callable[..., None], figures: list[Figure], tmp_path: Path
) -> None:
    write(RESULTS, MACHINE, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    assert {"mxfp4: 1.50 x greedy", "hierarchy: 1.50 x greedy", "mxfp4"} <= texts(figures[0])
    assert any("3 prompts, 96 tokens, 2 threads, A processor" in text for text in texts(figures[0]))
    assert not any("greedy: " in text or text == "small $x$" for text in texts(figures[0]))


def test_prompts_stand_in_the_order_of_the_first_drafts_acceptance(figures: list[Figure], tmp_path: Path) -> None:
    write_acceptance_by_prompt(RESULTS, MACHINE, tmp_path / "picture.png")
    first, second = figures[0].axes
    points = [[tuple(map(float, point)) for point in axes.collections[0].get_offsets()] for axes in (first, second)]
    assert points[0] == [(1, 1.0), (2, 0.75), (3, 0.5)]
    assert points[1] == [(1, 0.9), (3, 0.4)]
