"""Advice: the best of a search, and a plain word where no draft pays."""

from dataclasses import replace

import pytest

from mxconv.arch.fields import Fields
from mxconv.cost.advice import INNER_LENGTHS, OUTER_LENGTHS, THRESHOLDS, advise
from mxconv.cost.architecture import Architecture
from mxconv.cost.counts import count_pass
from mxconv.cost.early_exit import expected_round
from mxconv.cost.hardware import open_hardware
from mxconv.cost.levels import FOUR_BIT, Workload, pass_seconds, strategies_of, with_acceptance
from mxconv.cost.published.architectures import LLAMA_3_1_8B
from mxconv.cost.roofline import pass_points, point
from mxconv.cost.speedup import speedup

LLAMA = Architecture.from_fields(Fields(LLAMA_3_1_8B, "config.json"))
STRATEGIES = strategies_of(LLAMA)
CPU = open_hardware("core-ultra-9-285k")
HERE = Workload()


def test_a_pass_that_comes_from_memory_takes_its_bytes_over_the_bandwidth() -> None:
    target = STRATEGIES["bf16"][0]
    expected = (7_504_658_432 * 2 + 32 * 2 * 8 * 128 * 2 * 1024) / 104e9
    assert pass_seconds(CPU, target, HERE) == pytest.approx(expected)


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


def test_the_choice_is_the_fastest_of_all_lengths_and_thresholds() -> None:
    levels = STRATEGIES["bf16 <- mxfp4"]
    found = advise(CPU, {"bf16": levels[:1], "bf16 <- mxfp4": levels}, HERE).choices[0]
    draft = pass_seconds(CPU, levels[1], HERE)
    seconds = []
    for length in OUTER_LENGTHS:
        for threshold in THRESHOLDS:
            r = expected_round(levels[1].acceptance, length, threshold)
            verify = pass_seconds(CPU, levels[0], HERE, 1 + r.num_drafted)
            seconds.append((r.num_drafted * draft + verify) / r.num_tokens)
    assert found.seconds_per_token == pytest.approx(min(seconds))
    assert found.num_draft_tokens[0] in OUTER_LENGTHS
    assert INNER_LENGTHS[0] == 1


def test_given_lengths_are_used_as_they_are() -> None:
    levels = STRATEGIES["bf16 <- mxfp4"]
    found = advise(CPU, {"bf16": levels[:1], "bf16 <- mxfp4": levels}, HERE, [5.31]).choices[0]
    plain, draft = (pass_seconds(CPU, level, HERE) for level in levels)
    verify = pass_seconds(CPU, levels[0], HERE, 6.31)
    assert found.num_draft_tokens == [5.31]
    assert found.speedup == pytest.approx(speedup(levels[1].acceptance, 5.31, draft / plain, verify / plain))


def test_good_drafts_on_slow_memory_are_worth_it() -> None:
    advice = advise(CPU, STRATEGIES, HERE)
    assert advice.speculate
    assert advice.text.startswith("Speculate with bsfp <- bsfp draft")
    assert [c.seconds_per_token for c in advice.choices] == sorted(c.seconds_per_token for c in advice.choices)
    assert all(choice.acceptance_sources[0] for choice in advice.choices if choice.acceptance)


def test_bad_drafts_are_not_and_the_advice_says_from_where_they_would_be() -> None:
    levels = with_acceptance(STRATEGIES["bf16 <- mxfp4"], dict.fromkeys(FOUR_BIT, 0.05), "a test")
    advice = advise(CPU, {"bf16": levels[:1], "bf16 <- mxfp4": levels}, HERE)
    assert not advice.speculate
    assert advice.text.startswith("Do not speculate: bf16 <- mxfp4, the best with a draft, is 0.")
    assert "it would pay from an acceptance of 0." in advice.text
    assert advice.text.endswith("and it has 0.05.")


def test_where_arithmetic_is_the_limit_no_draft_is_good_enough() -> None:
    levels = STRATEGIES["bf16 <- mxfp4"]
    slow = replace(CPU, peaks={"fp32": 10.0})
    advice = advise(slow, {"bf16": levels[:1], "bf16 <- mxfp4": levels}, HERE)
    assert not advice.speculate
    assert "even a draft that is always right would cost more than it saves" in advice.text


def test_without_a_draft_there_is_nothing_to_advise() -> None:
    advice = advise(CPU, {"bf16": STRATEGIES["bf16"]}, HERE)
    assert (advice.speculate, advice.text) == (False, "Do not speculate: there is no draft.")
