"""Levels of a package, the roofline of their passes, and predictions against a trace."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from checkpoints import write_tiny_llama
from packages import quantize
from published.model_cards import LLAMA_3_1_8B
from tiny_levels import record_of

from mxconv.arch.fields import Fields
from mxconv.arch.model_sizes import ModelSizes
from mxconv.cost.answers import mean_error, predict
from mxconv.cost.counts import count_pass, kv_bytes
from mxconv.cost.hardware import Hardware, open_hardware
from mxconv.cost.levels import (
    CostLevel,
    Workload,
    costs,
    level_count,
    pass_points,
    pass_seconds,
    point,
    strategies_of,
    with_acceptance,
)
from mxconv.cost.package_levels import package_levels, package_strategies
from mxconv.cost.trace import TraceLine, summarize
from mxconv.drafts.kind import DraftSpec
from mxconv.drafts.pass_cost import checkpoint_bytes, package_bytes
from mxconv.errors import MxconvError
from mxconv.package.package import Package

MACHINE = Hardware("m", "a machine", 10.0, {"fp32": 1000.0}, {})
SLOW = Hardware("s", "one that multiplies slowly", 10.0, {"fp32": 5.0}, {})
HERE = Workload(context=10, kv_dtype="fp32")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """target <- bsfp <- small."""
    folder = tmp_path_factory.mktemp("prediction")
    small = write_tiny_llama(folder / "small", seed=1, num_hidden_layers=1)
    source = write_tiny_llama(folder / "source")
    quantize(source, folder / "package", codec="bsfp", drafts=(f"checkpoint:{small}",))
    return folder / "package"


@pytest.fixture(scope="module")
def levels(package: Path) -> list[CostLevel]:
    with Package(package) as opened:
        return package_levels(opened)


def test_levels_have_the_packages_bytes_and_their_own_sizes(package: Path, levels: list[CostLevel]) -> None:
    with Package(package) as opened:
        expected = [package_bytes(opened, is_draft) for is_draft in (False, True)]
        small = opened.root / (opened.manifest.levels[2].path or "")
    assert [level.num_bytes for level in levels] == [*expected, checkpoint_bytes(small)]
    assert [level.codec for level in levels] == ["bsfp", "bsfp-draft", "bf16"]
    assert [level.architecture.num_layers for level in levels if level.architecture] == [2, 2, 1]
    assert all(level.acceptance_source for level in levels[1:])


def test_strategies_are_those_of_bench_decode(levels: list[CostLevel]) -> None:
    names = {name: [level.name for level in own] for name, own in package_strategies(levels).items()}
    target, draft, small = (level.name for level in levels)
    assert names == {
        "greedy": [target], draft: [target, draft], small: [target, small], "hierarchy": [target, draft, small],
    }  # fmt: skip


KEYS = ("round", "level", "num_proposed", "num_accepted", "num_forwards", "seconds", "num_nodes", "num_tokens")


def traced(*values: Any) -> TraceLine:
    """A line of prompt 0 with the values of `KEYS`, in order."""
    return TraceLine(prompt=0, **dict(zip(KEYS, values, strict=False)))


def lines(levels: list[CostLevel], slower: float = 1.0) -> list[TraceLine]:
    """Rounds of a machine that does exactly what the roofline says, or takes longer: 3 drafted, 2 accepted."""
    target, draft = levels[:2]
    verify, each = pass_seconds(MACHINE, target, HERE, 4), pass_seconds(MACHINE, draft, HERE)
    found = []
    for number in range(1, 11):
        found.append(traced(number, target.name, 0, 0, 1, verify * slower))
        found.append(traced(number, draft.name, 3, 2, 3, 3 * each * slower))
    return found


def test_a_machine_as_fast_as_its_roofline_is_predicted_exactly(levels: list[CostLevel]) -> None:
    found = predict(MACHINE, levels, summarize(lines(levels), "run"), HERE)
    assert found["error"] == pytest.approx(0, abs=1e-12)
    assert found["equation_error"] == pytest.approx(0, abs=1e-9)  # one draft of one length: nothing is left out
    assert found["num_draft_tokens"] == [3]
    assert found["num_tokens"] == 30
    assert found["predicted_pass_seconds"] == pytest.approx(found["measured_pass_seconds"])


def test_a_slower_machine_is_predicted_too_fast_by_as_much(levels: list[CostLevel]) -> None:
    slow = predict(MACHINE, levels, summarize(lines(levels, 1.25), "run"), HERE)
    assert slow["error"] == pytest.approx(0.25)
    assert slow["equation_error"] == pytest.approx(0, abs=1e-9)
    exact = predict(MACHINE, levels, summarize(lines(levels), "run"), HERE)
    assert mean_error([slow, exact]) == pytest.approx(0.125)
    half = replace(MACHINE, fractions={"bsfp-full": {1: 0.5}, "bsfp-draft": {1: 0.5}, "attention": {1: 0.5}})
    assert predict(half, levels, summarize(lines(levels, 2.0), "run"), HERE)["error"] == pytest.approx(0)


def test_a_target_that_the_cache_holds_is_told_apart(levels: list[CostLevel]) -> None:
    trace = summarize(lines(levels), "run")
    read = level_count(levels[0], HERE, 4).num_bytes
    assert levels[0].num_bytes is not None and read > levels[0].num_bytes  # keys and values too
    assert read == int(read)
    for cache, fits in ((None, False), (int(read) - 1, False), (int(read), True)):
        found = predict(replace(MACHINE, last_level_cache_bytes=cache), levels, trace, HERE)
        assert (found["num_bytes"], found["last_level_cache_bytes"], found["fits_cache"]) == (read, cache, fits)


def test_a_trace_of_another_package_is_an_error(levels: list[CostLevel]) -> None:
    trace = summarize([traced(1, "mxfp4", 0, 0, 1, 1.0)], "run")
    with pytest.raises(MxconvError, match=r"^trace run: level 'mxfp4'; one of target, bsfp, small is required"):
        predict(MACHINE, levels, trace, HERE)


def test_drafts_made_of_the_target_read_what_they_use_of_it_and_look_ups_read_nothing(package: Path) -> None:
    specs = [
        DraftSpec("streaming", parameters={"sink": 2, "window": 6}),
        DraftSpec("prompt-lookup"),
    ]
    with Package(package) as opened:
        target = opened.manifest.levels[0]
        drafts = [record_of(spec, spec.kind) for spec in specs]
        opened.manifest = opened.manifest.model_copy(update={"levels": [target, *drafts]})
        whole, streaming, look_up = package_levels(opened)
    a = whole.architecture
    assert a is not None
    assert streaming.num_bytes == whole.num_bytes
    assert streaming.architecture is not None
    assert kv_bytes(streaming.architecture, 50) == kv_bytes(a, 8)
    assert pass_seconds(MACHINE, look_up, HERE) == 0
    assert all("give --acceptance or a trace" in level.acceptance_source for level in (streaming, look_up))


def test_passes_over_trees_are_as_wide_as_their_nodes(levels: list[CostLevel]) -> None:
    """A machine that takes as long as the roofline says over 12 nodes and the last token, three deep."""
    target, draft = levels[:2]
    verify = pass_seconds(SLOW, target, HERE, 13)
    assert verify > 1.1 * pass_seconds(SLOW, target, HERE, 4)  # rows cost something here
    found = [
        text
        for number in range(1, 11)
        for text in (
            traced(number, target.name, 0, 0, 1, verify, 0, 3),
            traced(number, draft.name, 3, 2, 3, 3 * pass_seconds(SLOW, draft, HERE), 12),
        )
    ]
    prediction = predict(SLOW, levels, summarize(found, "run"), HERE)
    assert (prediction["num_draft_tokens"], prediction["num_nodes"], prediction["num_tokens"]) == ([3], [12], 30)
    assert prediction["error"] == pytest.approx(0, abs=1e-12)
    assert prediction["equation_error"] == pytest.approx(0, abs=1e-9)


def test_verification_pays_for_the_rows_of_trees(levels: list[CostLevel]) -> None:
    trees = with_acceptance(levels[:2], {}, "", {levels[1].name: 4.0})
    passes = costs(SLOW, trees, [3], HERE)
    assert passes[0].verify_seconds == pass_seconds(SLOW, levels[0], HERE, 13)
    assert passes[0].seconds == pass_seconds(SLOW, levels[0], HERE)


LLAMA = ModelSizes.from_fields(Fields(LLAMA_3_1_8B, "config.json"))
CPU = open_hardware("core-ultra-9-285k")


def test_a_pass_that_comes_from_memory_takes_its_bytes_over_the_bandwidth() -> None:
    target = strategies_of(LLAMA)["bf16"][0]
    expected = (7_504_658_432 * 2 + 32 * 2 * 8 * 128 * 2 * 1024) / 104e9
    assert pass_seconds(CPU, target, Workload()) == pytest.approx(expected)


def test_a_kernel_is_bound_by_memory_or_by_arithmetic() -> None:
    low, high = (point(CPU, "bf16", "bf16", n, 2e9, n * 1e9) for n in (1, 64))
    assert (low.bound, high.bound) == ("memory", "compute")
    assert low.attainable == pytest.approx(52.0)
    assert high.attainable == CPU.peak("bf16")
    half = replace(CPU, fractions={"bf16": {1: 0.5}})
    assert point(half, "bf16", "bf16", 1, 2e9, 1e9).seconds == pytest.approx(2 * low.seconds)


def test_attention_is_a_kernel_of_its_own() -> None:
    matrices, attention = pass_points(CPU, "mxfp4", count_pass(LLAMA, "mxfp4", 4, context=1024))
    assert (matrices.kernel, matrices.form) == ("mxfp4-int8", "int8")
    assert (attention.kernel, attention.form) == ("attention", "fp32")
    assert matrices.num_bytes == 7_504_658_432 * 4.25 / 8
