"""Equations of speed: Leviathan's with its recursion against simulated rounds, and SPIRe's against its figures."""

import numpy as np
import pytest
from published.spire_figures import critical_context

from mxconv.cost.hardware import open_hardware
from mxconv.cost.speedup import (
    LevelCost,
    accepted_tokens,
    break_even_acceptance,
    expected_tokens,
    hierarchy_seconds,
    hierarchy_speedup,
    round_speedup,
    speedup,
)
from mxconv.cost.throughput import (
    LLAMA_3_70B,
    SPIRE_DRAFT_TOKENS,
    SPIRE_DRAFTS,
    SPIRE_TARGET,
    SPIRE_VANILLA,
    WINDOW,
    BatchedDraft,
    DecoderBody,
    throughput_multiplier,
    units_saved,
)
from mxconv.errors import MxconvError


def test_expected_tokens_are_those_of_simulated_rounds() -> None:
    rng = np.random.default_rng(0)
    accepted = rng.random((200_000, 5)) < 0.7
    run = np.where(accepted.all(axis=1), 5, np.argmin(accepted, axis=1))
    assert expected_tokens(0.7, 5) == pytest.approx(run.mean() + 1, rel=0.005)


def test_certain_acceptance_yields_all_and_none_yields_one() -> None:
    assert expected_tokens(1.0, 5.5) == 6.5
    assert expected_tokens(0.0, 5) == 1
    assert speedup(0.0, 4, 0.25) == 0.5
    assert speedup(1.0, 4, 0.25) == 2.5


def test_ml_specqds_equation_has_both_printed_forms() -> None:
    accepted, drafted, speed = 3, 4, 4.0
    share = accepted / drafted
    assert round_speedup(share, drafted, speed) == pytest.approx((accepted + 1) / (1 + drafted / speed))
    assert round_speedup(share, drafted, speed) == pytest.approx((share + 1 / drafted) / (1 / drafted + 1 / speed))


def test_the_two_equations_agree_at_the_share_that_a_probability_gives_and_at_no_other() -> None:
    share = (expected_tokens(0.8, 6) - 1) / 6
    assert share < 0.8
    assert round_speedup(share, 6, 4.0) == pytest.approx(speedup(0.8, 6, 0.25))
    assert round_speedup(0.8, 6, 4.0) > 1.2 * speedup(0.8, 6, 0.25)


def ml_specqd(shares: list[float], lengths: list[float], speeds: list[float]) -> float:
    levels = [LevelCost(1 / speed, *own) for speed, *own in zip(speeds, shares, lengths, strict=True)]
    return hierarchy_speedup([LevelCost(1.0), *levels], accepted_tokens)


def test_ml_specqds_second_draft_makes_the_first_one_faster_and_nothing_else() -> None:
    inner = 4.0 * round_speedup(0.42, 4, 100 / 4)
    assert ml_specqd([0.82, 0.42], [4, 4], [4, 100]) == pytest.approx(round_speedup(0.82, 4, inner))
    assert ml_specqd([0.82], [4], [4]) == pytest.approx(round_speedup(0.82, 4, 4))


def test_a_hierarchy_of_one_draft_is_the_equation() -> None:
    levels = [LevelCost(2.0, verify_seconds=2.2), LevelCost(0.5, 0.8, 6)]
    assert hierarchy_speedup(levels) == pytest.approx(speedup(0.8, 6, 0.25, 1.1))
    assert hierarchy_seconds(levels[:1]) == 2.0


def test_a_second_draft_makes_the_first_one_cheaper_and_nothing_else() -> None:
    inner = [LevelCost(0.5, 0.8, 6), LevelCost(0.05, 0.6, 3)]
    cheaper = LevelCost(hierarchy_seconds(inner), 0.8, 6)
    assert hierarchy_seconds(inner) == pytest.approx((3 * 0.05 + 0.5) / expected_tokens(0.6, 3))
    assert hierarchy_seconds([LevelCost(2.0), *inner]) == hierarchy_seconds([LevelCost(2.0), cheaper])


def test_break_even_is_where_the_speed_up_is_one() -> None:
    even = break_even_acceptance(5, 0.3, 1.1)
    assert even is not None
    assert speedup(even, 5, 0.3, 1.1) == pytest.approx(1)
    assert break_even_acceptance(5, 1.5) is None


def test_what_is_out_of_range_is_an_error() -> None:
    for value in (-0.1, 1.5, float("nan")):
        with pytest.raises(
            MxconvError, match=r"^acceptance: .*; a probability from 0 to 1 is required\. Give it as a fr"
        ):
            expected_tokens(value, 4)
    for length in (-1, 2000):
        with pytest.raises(MxconvError, match=rf"^draft tokens: {length}; a number from 0 to 1024 is required"):
            expected_tokens(0.5, length)
    with pytest.raises(MxconvError, match=r"^accepted share: 1.2; a probability from 0 to 1 is required"):
        round_speedup(1.2, 4, 4)
    with pytest.raises(MxconvError, match=r"^draft speed: 0; a number above 0 is required"):
        round_speedup(0.5, 4, 0)
    with pytest.raises(MxconvError, match=r"batch: 0; at least 1 is required"):
        multiplier(SPIRE_TARGET, "SPIRe", 0, 512)


H100 = open_hardware("h100-sxm").intensity("int8")


def multiplier(
    target: DecoderBody, draft: str, batch: int, context: int, intensity: float = H100, window: int = WINDOW
) -> float:
    return throughput_multiplier(target, SPIRE_DRAFTS[draft](target, window), batch, context, 4, intensity)


def test_body_parameters_are_those_of_the_appendix() -> None:
    assert SPIRE_TARGET.num_parameters == 67_117_056
    assert SPIRE_VANILLA.num_parameters == 8_390_656
    assert SPIRE_TARGET.with_layers(1 / 4).num_parameters == 16_779_264


@pytest.mark.parametrize(
    ("target", "context", "draft", "window", "published"),
    [
        (SPIRE_TARGET, 512, "vanilla", WINDOW, 1.36),
        (SPIRE_TARGET, 512, "MagicDec", WINDOW, 2.05),
        (SPIRE_TARGET, 512, "SPIRe", WINDOW, 2.78),
        (LLAMA_3_70B, 65536, "MagicDec", 8192, 2.14),  # an eighth of the context, not the 64 of the text
        (LLAMA_3_70B, 65536, "SPIRe", 8192, 2.82),
    ],
)
def test_multipliers_are_within_half_a_percent_of_the_papers(
    target: DecoderBody, context: int, draft: str, window: int, published: float
) -> None:
    assert multiplier(target, draft, 64, context, window=window) == pytest.approx(published, rel=0.005)


def test_the_window_decides_which_draft_is_faster() -> None:
    """With the text's 64 positions MagicDec is ahead at a context of 4,096, with an eighth of the context SPIRe."""
    assert WINDOW == 64
    for window, published in ((64, [3.46, 3.30]), (512, [2.50, 2.99])):
        found = [multiplier(SPIRE_TARGET, draft, 64, 4096, window=window) for draft in ("MagicDec", "SPIRe")]
        assert found == pytest.approx(published, abs=0.005)


@pytest.mark.parametrize(("target", "published"), [(SPIRE_TARGET, 32), (LLAMA_3_70B, 65536 / 2**4)])
def test_critical_contexts_are_the_papers(target: DecoderBody, published: int) -> None:
    """Its contexts are powers of two: L_crit is the longest one where some batch makes verification compute.

    With k rows, as section 4.1 counts a verification; with the k + 1 of the multiplier the first would be 64.
    """
    assert published <= critical_context(target, SPIRE_DRAFT_TOKENS, H100) < 2 * published
    assert (critical_context(target, SPIRE_DRAFT_TOKENS + 1, H100) >= 2 * published) == (target is SPIRE_TARGET)


def test_cost_analysis() -> None:
    for published, multiple, training in ((6.40, 2.78, 0), (5.12, 2.05, 0), (6.15, 2.78, 0.25), (6.20, 2.82, 0.25)):
        assert units_saved(multiple, training_units=training) == pytest.approx(published, abs=0.006)


def test_intensity_cancels_where_all_passes_come_from_memory_and_not_where_they_compute() -> None:
    assert multiplier(SPIRE_TARGET, "SPIRe", 64, 512, 300) == multiplier(SPIRE_TARGET, "SPIRe", 64, 512, 600)
    assert multiplier(SPIRE_TARGET, "SPIRe", 512, 32, 300) < multiplier(SPIRE_TARGET, "SPIRe", 512, 32, 600)


def test_projecting_memory_costs_where_the_draft_computes() -> None:
    body = SPIRE_TARGET.with_layers(1 / 4)
    with_memory = BatchedDraft(body, 3.0, 4, projects_memory=True)
    without = BatchedDraft(body, 3.0, 4)
    assert throughput_multiplier(SPIRE_TARGET, with_memory, 512, 32, 4, 600) < throughput_multiplier(
        SPIRE_TARGET, without, 512, 32, 4, 600
    )


def test_a_sparse_cache_is_the_sink_and_the_window() -> None:
    draft = BatchedDraft(SPIRE_TARGET, 3.0, 64)
    assert [draft.positions(context) for context in (16, 64, 65, 512, 4096)] == [16, 64, 65, 65, 65]
    assert BatchedDraft(SPIRE_TARGET, 3.0).positions(512) == 512
