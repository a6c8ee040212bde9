"""Pictures: what is on them, whatever is missing from the figures, and the same bytes for the same figures."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mxconv.kernels._native", reason="the extension is not built on this machine")

import matplotlib
from matplotlib.figure import Figure

from mxconv.bench.decode_speed import DecodeResult
from mxconv.bench.kernel_speed import KERNELS, make_operand, summarize
from mxconv.bench.machine import Machine
from mxconv.bench.plots import (
    write_acceptance_by_position,
    write_acceptance_by_prompt,
    write_bandwidth_plot,
    write_roofline,
)
from mxconv.errors import MxconvError

MACHINE = Machine("A processor", 2, "GCC 12", None)
OPERANDS = [make_operand(kernel, (64, 128)) for kernel in KERNELS]
PRODUCTS = [
    summarize(operand, "avx2", width, [(1e-6 * width * i, 50e9, 1e11) for i in (1, 2, 3)])
    for operand in OPERANDS
    for width in (1, 4, 16)
]


def decodes(strategy: str, by_prompt: dict[str, list[float | None]]) -> DecodeResult:
    rates = [[rate for rate in rates if rate is not None] for rates in by_prompt.values()]
    return DecodeResult(
        strategy=strategy, levels=["target", *by_prompt], num_prompts=3, num_tokens=96,
        tokens_per_second=10.0, speedup=1.5, speedup_by_prompt=[1.5] * 3, tokens_per_round=2.0,
        acceptance_rates=[sum(found) / len(found) if found else None for found in rates],
        acceptance_by_prompt=list(by_prompt.values()),
        acceptance_by_position=[[0.9, 0.5] if found else [] for found in rates],
        decode_speedup=1.6, num_bytes=1, read_bandwidth=10.0, fraction_of_bandwidth=0.9, identical_to_greedy=True,
        num_nodes=[],
    )  # fmt: skip


DECODES = [
    decodes("greedy", {}),
    decodes("mxfp4", {"mxfp4": [0.5, 1.0, 0.75]}),
    decodes("hierarchy", {"mxfp4": [0.4, 0.9, None], "small $x$": [None, None, None]}),
]
of_products = pytest.mark.parametrize("write", [write_bandwidth_plot, write_roofline])


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


@of_products
def test_products_name_every_kernel_the_machine_and_the_shape_and_give_the_same_bytes_again(
    write: Callable[..., None], figures: list[Figure], tmp_path: Path
) -> None:
    names = ["portable", "avx2"]
    results = [replace(r, implementation=name) for name in names for r in PRODUCTS]
    paths = [tmp_path / "a.svg", tmp_path / "b.svg"]
    for path in paths:
        write(results, MACHINE, path)
    assert {*KERNELS, *names} <= texts(figures[0])
    assert any("64 x 128, 2 threads, A processor" in text for text in texts(figures[0]))
    assert paths[0].read_bytes() == paths[1].read_bytes()
    write(PRODUCTS[:1], MACHINE, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(MxconvError, match=r"\.png or \.svg is required"):
        write(PRODUCTS, MACHINE, tmp_path / "picture.pdf")


def test_an_axis_of_less_than_a_power_of_ten_has_plain_numbers(tmp_path: Path) -> None:
    path = tmp_path / "picture.svg"
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        write_roofline([r for r in PRODUCTS if r.num_tokens == 16], MACHINE, path)
    text = path.read_text()
    assert "mathdefault" not in text and (">50<" in text or ">200<" in text)


@pytest.mark.parametrize("write", [write_acceptance_by_prompt, write_acceptance_by_position])
def test_each_strategy_with_a_draft_has_a_panel(
    write: Callable[..., None], figures: list[Figure], tmp_path: Path
) -> None:
    write(DECODES, MACHINE, tmp_path / "picture.png")
    assert {"mxfp4: 1.50 x greedy", "hierarchy: 1.50 x greedy", "mxfp4"} <= texts(figures[0])
    assert any("3 prompts, 96 tokens, 2 threads, A processor" in text for text in texts(figures[0]))
    assert not any("greedy: " in text or text == "small $x$" for text in texts(figures[0]))


def test_prompts_are_in_the_order_of_the_first_drafts_acceptance(figures: list[Figure], tmp_path: Path) -> None:
    write_acceptance_by_prompt(DECODES, MACHINE, tmp_path / "picture.png")
    first, second = figures[0].axes
    points = [[tuple(map(float, point)) for point in axes.collections[0].get_offsets()] for axes in (first, second)]
    assert points == [[(1, 1.0), (2, 0.75), (3, 0.5)], [(1, 0.9), (3, 0.4)]]
