"""The cost page in a browser: its numbers are Python's at every setting, every chart is drawn, nothing overlaps."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from browser import Browse, browser
from cost_pages import config_question, mixture_question, package_question, tree_question

from mxconv.cost.levels import costs, level_count, seconds_per_token, with_acceptance
from mxconv.cost.report import DEFAULT_NUM_DRAFT_TOKENS, Question, cost_report
from mxconv.cost.roofline import pass_points
from mxconv.cost.speedup import TokensPerRound, accepted_tokens, expected_tokens, hierarchy_seconds
from mxconv.package.manifest import read_manifest
from mxconv.report.cost_page import render_cost_page
from mxconv.report.cost_page_data import ROOFLINE_TOKENS, page_data
from mxconv.report.inspection import Inspection

COLUMNS = ("tokens_per_second", "over_plain", "speedup", "break_even", "tokens_per_round", "draft_cost", "verify_cost")

EQUATIONS = (accepted_tokens, expected_tokens)
SURFACES = ("bsfp <- bsfp draft", "bf16 <- mxfp4 <- small model")
PROBES = Path(__file__).parent / "probes"
MOVE = (PROBES / "move.js").read_text()
LOOK = (PROBES / "look.js").read_text()


@pytest.fixture
def browse(tmp_path: Path) -> Browse:
    return browser(tmp_path)


@dataclass(frozen=True)
class Setting:
    """Where the sliders stand; an acceptance a draft, a length a depth."""

    acceptances: tuple[float, ...]
    lengths: tuple[float, ...]
    batch: int
    context: int

    def moves(self, data: dict[str, Any]) -> dict[str, float | str]:
        return (
            {f"acceptance-{index}": value for index, value in enumerate(self.acceptances)}
            | {f"length-{index}": value for index, value in enumerate(self.lengths)}
            | {"batch": data["batches"].index(self.batch), "context": data["contexts"].index(self.context)}
        )

    def asked(self, question: Question, data: dict[str, Any]) -> Question:
        """The question that Python is asked with the sliders' values."""
        names = [draft["name"] for draft in data["drafts"]]
        by_name = dict(zip(names, self.acceptances, strict=True))
        return replace(
            question,
            strategies={name: with_acceptance(own, by_name, "") for name, own in question.strategies.items()},
            num_draft_tokens=list(self.lengths),
            workload=replace(question.workload, batch=self.batch, context=self.context),
        )


SETTINGS = (
    Setting((0.5, 0.8, 0.95), (4, 2), 1, 1024),
    Setting((0.0, 1.0, 0.333), (1, 16), 1, 8192),
    Setting((0.68, 0.91, 0.976), (12, 5), 64, 65536),
    Setting((0.99, 0.6, 1.0), (7, 3), 8, 16),
)
FRACTIONAL = (Setting((0.68, 0.974, 0.974), (5.31, 2.5), 1, 2048), Setting((0.2, 0.7, 0.9), (8.5, 1), 4, 128))


@pytest.mark.parametrize(
    ("question", "settings"),
    [
        pytest.param(config_question(), SETTINGS, id="roofline"),
        pytest.param(config_question(name="measured"), SETTINGS, id="measured kernels"),
        pytest.param(tree_question("measured"), SETTINGS, id="trees"),
        pytest.param(config_question(name="speq-28nm", lengths=[5.31]), (*SETTINGS, *FRACTIONAL), id="accelerator"),
        pytest.param(config_question(name="speq-28nm, slow DRAM"), SETTINGS, id="accelerator, memory bound"),
        pytest.param(mixture_question("core-ultra-9-285k"), SETTINGS, id="mixture of experts"),
    ],
)
def test_sliders_give_the_numbers_of_the_python_models(
    browse: Browse, question: Question, settings: Sequence[Setting]
) -> None:
    report = cost_report(question)
    data = page_data(question, report)
    moves: list[dict[str, float | str]] = [{}, *(setting.moves(data) for setting in settings)]
    names = list(question.strategies)
    for index, move in enumerate(moves):
        move["surface-hierarchy"] = names.index(SURFACES[index % 2])
        move["surface-equation"] = ("ml-specqd", "leviathan")[index // 2 % 2]
    seen = browse(render_cost_page(question, report), MOVE.replace("MOVES", json.dumps(moves)))
    assert seen.console == []
    assert len(seen.found) == len(moves)
    asked = [replace(question, num_draft_tokens=data["lengths"])]
    asked += [setting.asked(question, data) for setting in settings]
    for index, (found, own) in enumerate(zip(seen.found, asked, strict=True)):
        assert found["answers"] == answers(own)
        assert found["multipliers"] == (multipliers(own) if data["throughput"] else {})
        assert found["roofline"] == roofline(own)
        check_surface(found["surface"], own, SURFACES[index % 2], EQUATIONS[index // 2 % 2])
        check_map(found["map"], own)
    assert len({found["words"] for found in seen.found}) > 1


def answers(question: Question) -> dict[str, Any]:
    """The live table as Python has it: from the report's speed-ups, and seconds a token."""
    speedups = cost_report(question)["models"][0]["outputs"]
    plain, found = None, {}
    for name, levels in question.strategies.items():
        lengths = question.lengths(len(levels) - 1)
        seconds = seconds_per_token(question.hardware, levels, lengths, question.workload)
        plain = seconds if plain is None else plain
        row = {"tokens_per_second": question.workload.batch / seconds, "over_plain": plain / seconds, "speedup": 1.0}
        if name in speedups:
            own = speedups[name]
            row |= {key: own[key] for key in ("speedup", "tokens_per_round", "draft_cost", "verify_cost")}
            row["break_even"] = own["break_even_acceptance"]
        found[name] = [None if row.get(key) is None else pytest.approx(row[key], rel=1e-9) for key in COLUMNS]
    return found


def multipliers(question: Question) -> dict[str, Any]:
    outputs = cost_report(question)["models"][1]["outputs"]
    keys = ("acceptance", "tokens_per_round", "throughput_multiplier")
    return {name: [pytest.approx(row[key], rel=1e-9) for key in keys] for name, row in outputs.items()}


def roofline(question: Question) -> list[Any]:
    """The points in the page's order: each level's products, and the first level's attention."""
    found: list[Any] = []
    for index, level in enumerate(question.levels):
        counts = [level_count(level, question.workload, tokens) for tokens in ROOFLINE_TOKENS]
        pairs = [pass_points(question.hardware, level.codec, count) for count in counts]
        for points in list(zip(*pairs, strict=True))[: 2 if index == 0 else 1]:
            found += [
                {key: pytest.approx(value, rel=1e-9) for key, value in (("x", p.intensity), ("y", p.attainable))}
                for p in points
            ]
    return found


def check_surface(cells: list[dict[str, float]], question: Question, name: str, equation: TokensPerRound) -> None:
    """Some cells of a hierarchy's speed-up: over acceptance and length, or of two drafts over both acceptances."""
    levels, plain = question.strategies[name], next(iter(question.strategies.values()))
    base = seconds_per_token(question.hardware, plain, [], question.workload)
    lengths = question.lengths(len(levels) - 1)
    assert len(cells) == 51 * (16 if len(levels) == 2 else 51)
    for cell in cells[::97]:
        by_name = {levels[1].name: cell["y"]}
        if len(levels) == 2:
            lengths = [cell["x"]]
        else:
            by_name[levels[2].name] = cell["x"]
        passes = costs(question.hardware, with_acceptance(levels, by_name, ""), lengths, question.workload)
        seconds = hierarchy_seconds(passes, equation)
        assert cell["value"] == pytest.approx(base / seconds, rel=1e-9)


def check_map(cells: list[dict[str, float]], question: Question) -> None:
    """Some cells of SPIRe's draft over batch and context."""
    for cell in cells[::13]:
        workload = replace(question.workload, batch=int(cell["y"]), context=int(cell["x"]))
        row = cost_report(replace(question, workload=workload, models=["throughput"]))["models"][0]["outputs"]["SPIRe"]
        assert cell["value"] == pytest.approx(row["throughput_multiplier"], rel=1e-9)


@pytest.mark.parametrize("width", [1280, 390])
def test_every_chart_is_drawn_with_axes_and_nothing_overlaps(
    browse: Browse,
    width: int,
    tiny_llama: Path,
    inspect_path: Callable[..., Inspection],
    package: Callable[..., Path],
    tmp_path: Path,
) -> None:
    folder = package(tiny_llama, codec="bsfp")
    question = package_question(folder, tmp_path)
    page = render_cost_page(question, cost_report(question), read_manifest(folder), inspect_path(folder))
    seen = browse(page, LOOK, width)
    assert seen.console == []
    assert seen.found["wide"] <= 0
    charts = {chart["id"]: chart for chart in seen.found["charts"]}
    assert set(charts) == {
        *("chart-answers", "chart-lengths", "chart-surface", "chart-batches", "chart-roofline"),
        *("chart-trace-levels", "chart-trace-positions", "chart-predictions"),
    }
    for chart in charts.values():
        assert chart["marks"] >= 2, chart["id"]
        assert chart["x"] and chart["y"], chart["id"]
        assert chart["said"] != chart["hint"], chart["id"]
        check_words(chart)
    assert (charts["chart-roofline"]["x"], charts["chart-roofline"]["y"]) == (
        "multiply-adds a byte",
        "tera multiply-adds a second",
    )
    assert charts["chart-answers"]["x"] == "tokens a second"
    assert charts["chart-batches"]["y"] == "batch (sequences)"


def check_words(chart: dict[str, Any]) -> None:
    """No two words of a chart lie over each other, and none is cut off."""
    words, frame = chart["words"], chart["svg"]
    assert len(words) >= 6, chart["id"]
    for index, word in enumerate(words):
        assert word["left"] >= frame["left"] - 1 and word["right"] <= frame["right"] + 1, (chart["id"], word)
        assert word["top"] >= frame["top"] - 1 and word["bottom"] <= frame["bottom"] + 1, (chart["id"], word)
        for other in words[index + 1 :]:
            apart = word["right"] <= other["left"] or other["right"] <= word["left"]
            apart = apart or word["bottom"] - 2 <= other["top"] or other["bottom"] - 2 <= word["top"]
            assert apart, (chart["id"], word["text"], other["text"])


def test_an_error_in_a_page_would_be_seen(browse: Browse) -> None:
    question = config_question()
    page = render_cost_page(question, cost_report(question)).replace("function update()", "function renamed()")
    assert any("update is not defined" in line for line in browse(page, "return 1").console)


def test_the_sliders_start_at_the_advice_and_the_page_does_not_contradict_it(browse: Browse) -> None:
    question = config_question()
    report = cost_report(question)
    assert report["advice"]["speculate"]
    seen = browse(render_cost_page(question, report), MOVE.replace("MOVES", '[{"batch": 0}]'))
    assert report["advice"]["choices"][0]["strategy"] in seen.found[0]["words"]
    assert "no draft pays" not in seen.found[0]["words"]
    first, second = page_data(question, report)["lengths"]
    choices = report["advice"]["choices"]
    assert first == round(choices[0]["num_drafted"]) != DEFAULT_NUM_DRAFT_TOKENS
    assert second == next(row["num_draft_tokens"] for row in choices if len(row["num_draft_tokens"]) == 2)[1]
    given = replace(question, num_draft_tokens=[5.0])
    assert page_data(given, cost_report(given))["lengths"] == [5.0, 5.0]
