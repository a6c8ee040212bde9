"""Charts: what the data of each is, and that matplotlib draws all of them, the same bytes for the same data."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import matplotlib
import pytest

pytest.importorskip("mxconv.kernels._native", reason="the extension is not built on this machine")

from cost_questions import config_question
from published.model_cards import GPT_OSS_20B

from mxconv.bench.decode_speed import DecodeResult
from mxconv.bench.kernel_speed import KERNELS, make_operand, summarize
from mxconv.bench.plots import acceptance_by_position, acceptance_by_prompt, bandwidth_charts, roofline_charts
from mxconv.cost.surfaces import Surface
from mxconv.errors import MxconvError
from mxconv.report.charts import Chart, write_picture
from mxconv.report.cost_page import Figure, cost_charts
from mxconv.report.inspection import Inspection
from mxconv.report.inspection_page import inspection_charts
from mxconv.train.training_run import loss_chart

Inspect = Callable[..., Inspection]
Charts = list[Chart] | list[Surface]
PRODUCTS = [
    summarize(make_operand(kernel, (64, 128)), "avx2", width, [(1e-6 * width * i, 50e9, 1e11) for i in (1, 2, 3)])
    for kernel in KERNELS
    for width in (1, 4, 16)
]
COST = {
    "draft": ("share of the draft's tokens accepted", "draft tokens a round", "bf16 &lt;- mxfp4", "h100-sxm"),
    "two-drafts": ("share of the outer draft's tokens", "share of the inner draft's tokens", "bsfp &lt;- bsfp draft"),
    "throughput-maps": ("SPIRe", "MagicDec", "vanilla", "llama, 4 draft tokens", "batch (sequences)", "128K"),
    "roofline": ("3350 GB/s", "multiply-adds a byte", "mxfp4 (mxfp4)", "attention"),
}


def decodes(strategy: str, by_prompt: dict[str, list[float | None]]) -> DecodeResult:
    rates = [[rate for rate in rates if rate is not None] for rates in by_prompt.values()]
    return DecodeResult(
        strategy=strategy, batch=1, levels=["target", *by_prompt], num_prompts=3, num_tokens=96, seconds=9.6,
        tokens_per_second=10.0, speedup=1.5, decode_speedup=1.6, scaling=1.0, tokens_per_round=2.0,
        acceptance_rates=[sum(found) / len(found) if found else None for found in rates],
        acceptance_by_prompt=list(by_prompt.values()),
        acceptance_by_position=[[0.9, 0.5] if found else [] for found in rates],
        num_nodes=[], num_bytes=1, read_bandwidth=10.0, fraction_of_bandwidth=0.9, identical_to_greedy=True,
    )  # fmt: skip


DECODES = [
    decodes("greedy", {}),
    decodes("mxfp4", {"mxfp4": [0.5, 1.0, 0.75]}),
    decodes("hierarchy", {"mxfp4": [0.4, 0.9, None], "small $x$": [None, None, None]}),
]


def drawn(path: Path, title: str, charts: Charts) -> str:
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        write_picture(path, title, charts)
    return path.read_text()


@pytest.mark.parametrize("name", COST)
def test_the_figures_of_cost_name_their_axes_and_what_they_show(name: Figure, tmp_path: Path) -> None:
    text = drawn(tmp_path / "picture.svg", *cost_charts(config_question(), name))
    for expected in COST[name]:
        assert expected in text


def test_products_have_a_chart_an_implementation_and_a_series_a_kernel() -> None:
    results = [replace(r, implementation=name) for name in ("portable", "avx2") for r in PRODUCTS]
    for make, num_limits in ((bandwidth_charts, 1), (roofline_charts, 3)):  # bandwidth; and two peaks that are reached
        charts = make(results)
        assert [chart.title for chart in charts] == ["portable", "avx2"]
        for chart in charts:
            assert [series.label for series in chart.series if series.kind == "line"] == list(KERNELS)
            assert sum(series.kind == "limit" for series in chart.series) <= num_limits
    (first, *_) = (series for series in bandwidth_charts(PRODUCTS)[0].series if series.kind == "line")
    assert first.points == [(r.num_tokens, r.gigabytes_per_second) for r in PRODUCTS[:3]]
    assert first.spread is not None and first.spread[0][0] < first.points[0][1] < first.spread[1][0]


def test_acceptance_has_a_chart_a_drafting_strategy_and_prompts_in_the_order_of_the_first() -> None:
    by_prompt, by_position = acceptance_by_prompt(DECODES), acceptance_by_position(DECODES)
    for charts in (by_prompt, by_position):
        assert [chart.title for chart in charts] == ["mxfp4: 1.50 x greedy", "hierarchy: 1.50 x greedy"]
        assert not any(series.label == "small $x$" for chart in charts for series in chart.series)
    points = [series.points for chart in by_prompt for series in chart.series if series.kind == "points"]
    assert points == [[(1, 1.0), (2, 0.75), (3, 0.5)], [(1, 0.9), (3, 0.4)]]
    assert by_position[0].series[0].points == [(1, 0.9), (2, 0.5)]


def test_losses_are_smoothed_and_stages_marked(tmp_path: Path) -> None:
    log = tmp_path / "losses.jsonl"
    stages = ["text"] * 60 + ["own text"] * 40
    lines = [f'{{"step": {n}, "stage": "{name}", "parts": {{"head 0": {n % 2}}}}}' for n, name in enumerate(stages)]
    log.write_text("\n".join(lines))
    chart = loss_chart(log)
    raw, smooth = chart.series
    assert raw.points == [(n, n % 2) for n in range(100)] and smooth.points[2:] == [(n, 0.5) for n in range(2, 100)]
    assert chart.divisions == {0: "text", 60: "own text"}


def test_an_inspection_shows_bars_in_and_outside_the_window_and_each_draft_by_group(
    tiny_llama: Path, inspect_path: Inspect
) -> None:
    inspection = inspect_path(tiny_llama)
    exponents, (bars, drafts) = inspection.total.exponents, inspection_charts(inspection)[1]
    assert exponents is not None and exponents.window is not None
    inside, outside = bars.series
    assert sum(count for _, count in outside.points) == exponents.num_outside_window
    assert sum(count for _, count in inside.points) == exponents.num_nonzero - exponents.num_outside_window
    assert drafts.rows[-1] == "total"
    total = [series.points[-1][0] for series in drafts.series]
    found = inspection.total
    assert total == [found.bsfp_draft_sqnr_db, found.mxfp4_sqnr_db, found.bsfp_paper_draft_sqnr_db]


def test_the_same_charts_give_the_same_bytes_and_the_suffix_says_the_format(
    tiny_llama: Path, odd_checkpoint: Path, inspect_path: Inspect, tmp_path: Path
) -> None:
    pictures: dict[str, tuple[str, Charts]] = {
        "inspection": inspection_charts(inspect_path(tiny_llama)),
        "odd": inspection_charts(inspect_path(odd_checkpoint, per="tensor")),
        "nothing": inspection_charts(inspect_path(odd_checkpoint, tensor_glob="positions")),
        "bandwidth": ("title", bandwidth_charts(PRODUCTS)),
        "roofline": ("title", roofline_charts(PRODUCTS)),
        "acceptance": ("title", acceptance_by_prompt(DECODES)),
    }
    for name, picture in pictures.items():
        first, second = (drawn(tmp_path / f"{name}.{suffix}", *picture) for suffix in ("svg", "SVG"))
        assert first == second and "<svg" in first and "mathdefault" not in first  # plain numbers
    write_picture(tmp_path / "a.png", *pictures["odd"])
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_what_cannot_be_drawn_is_an_error(tmp_path: Path) -> None:
    question = config_question()
    plain = replace(question, strategies={"bf16": question.strategies["bf16"]})
    with pytest.raises(MxconvError, match=r"--figure two-drafts: no hierarchy with so many drafts; one is required"):
        cost_charts(plain, "two-drafts")
    with pytest.raises(MxconvError, match=r"--figure throughput-maps: a mixture of experts; a dense decoder is req"):
        cost_charts(config_question(GPT_OSS_20B), "throughput-maps")
    with pytest.raises(MxconvError, match=r"a picture that ends in '\.pdf'; \.png or \.svg is required\. Choose one"):
        write_picture(tmp_path / "a.pdf", *cost_charts(question, "draft"))
