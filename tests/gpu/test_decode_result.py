"""From texts to a row of the table."""

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip(
    "triton", reason="triton is not installed (make test-gpu installs it): mxconv.bench.gpu_clock needs it"
)

from mxconv.bench.gpu_decode_speed import Decoded, RecordedText, summarize
from mxconv.drafts.statistics import LevelStatistics
from mxconv.interop.transformers.custom_generate import GenerateRun, GreedyChoice


def text(tokens: list[int], seconds: float, run: GenerateRun | None = None, peak: int | None = None) -> RecordedText:
    choices = [GreedyChoice(index, token, token + 1, 0.5) for index, token in enumerate(tokens)]
    return RecordedText(tokens, seconds, 1e9, peak, choices, run)


def drafted_run(rounds: int, forwards: int, proposed: int, accepted: int) -> GenerateRun:
    level = LevelStatistics("draft")
    level.num_forwards, level.num_proposed, level.num_accepted = forwards, proposed, accepted
    return GenerateRun([], 4, rounds, [level])


PLAIN = Decoded("16-bit", [text([1, 2, 3, 4], 4.0), text([5, 6], 1.0)], 1000, 0, 70)
TARGET = Decoded("bsfp", [text([1, 2, 3, 4], 2.0, peak=40), text([5, 7], 1.0, peak=50)], 800, 0, 60)
DRAFTED = Decoded(
    "bsfp + draft",
    [text([1, 2, 3, 4], 1.0, drafted_run(2, 3, 3, 2)), text([5, 7], 1.0, drafted_run(2, 1, 1, 0))],
    800, 200, 60,
)  # fmt: skip


def test_speeds_are_of_tokens_a_second_and_passes_read_their_bytes() -> None:
    row = summarize(DRAFTED, PLAIN, TARGET)
    assert (row.num_tokens, row.tokens_per_second) == (6, 3)
    assert row.speedup_by_prompt == [4, 1]
    assert row.speedup == pytest.approx(2)
    assert row.tokens_per_round == 6 / 4
    assert row.acceptance_rates == [0.5]
    assert row.num_bytes == 4 * 800 + 4 * 200
    assert row.fraction_of_bandwidth == pytest.approx((2 * 800 + 3 * 200 + 2 * 800 + 200) / 2 / 1e9)
    assert row.read_bandwidth == 1


def test_drafts_are_compared_with_the_target_and_the_target_with_16_bits() -> None:
    plain = summarize(PLAIN, PLAIN, PLAIN)
    target, drafted = (summarize(each, PLAIN, TARGET) for each in (TARGET, DRAFTED))
    assert plain.identical_to_greedy and plain.differences == []
    assert not target.identical_to_greedy and target.identical_to_target
    (difference,) = target.differences
    assert (difference.prompt, difference.compared_with, difference.index) == (1, "16-bit", 1)
    assert (difference.token, difference.runner_up, difference.other_token, difference.other_runner_up) == (7, 8, 6, 7)
    assert not drafted.identical_to_greedy and drafted.identical_to_target and drafted.differences == []


@pytest.mark.parametrize(("change", "none"), [({"target_bytes": None}, True), ({}, False)])
def test_what_nobody_counted_is_none(change: dict[str, Any], none: bool) -> None:
    row = summarize(replace(TARGET, **change), PLAIN, TARGET)
    assert (row.num_bytes is None) == (row.fraction_of_bandwidth is None) == none
    assert (row.peak_bytes, row.loading_peak_bytes) == (50, 60)
    assert summarize(PLAIN, PLAIN, PLAIN).peak_bytes is None
