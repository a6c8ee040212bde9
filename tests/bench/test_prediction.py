"""Both equations on runs whose numbers are round, and on runs made of independent coin tosses."""

from dataclasses import replace

import numpy as np
import pytest

from mxconv.bench.prediction import LevelTiming, ml_specqd_speedup, predicted_speedup, timings_of
from mxconv.cost.speedup import LevelCost, accepted_tokens, hierarchy_speedup, round_speedup
from mxconv.speculation.statistics import LevelStatistics, Trace, TraceEntry


def timing(name: str, seconds: float, passes: int, lengths: dict[int, int], acceptance: float) -> LevelTiming:
    return LevelTiming(name, seconds, passes, lengths, acceptance)


def test_with_one_length_it_is_the_equation_as_printed() -> None:
    timings = [timing("target", 1.2, 10, {}, 0), timing("mxfp4", 0.25, 40, {4: 10}, 0.8)]
    expected_tokens = (1 - 0.8**5) / (1 - 0.8)
    assert predicted_speedup(timings, 1.0) == pytest.approx(expected_tokens / (4 * 0.25 + 1.2))
    assert predicted_speedup(timings, 1.0, {"target": 1.0}) == pytest.approx(expected_tokens / (4 * 0.25 + 1.0))


def test_a_hierarchy_applies_it_again_as_the_cost_model_does() -> None:
    timings = [
        timing("target", 1.1, 10, {}, 0),
        timing("mxfp4", 0.3, 20, {4: 10}, 0.9),
        timing("small", 0.05, 60, {3: 20}, 0.6),
    ]
    costs = [LevelCost(1.0, verify_seconds=1.1), LevelCost(0.3, 0.9, 4), LevelCost(0.05, 0.6, 3)]
    assert predicted_speedup(timings, 1.0) == pytest.approx(hierarchy_speedup(costs))


def test_a_look_up_that_finds_nothing_half_of_the_time_counts_those_rounds_too() -> None:
    timings = [timing("target", 1.0, 20, {}, 0), timing("prompt-lookup", 0.01, 20, {8: 10}, 0.5)]
    tokens = 10 + 10 * (1 - 0.5**9) / 0.5
    assert predicted_speedup(timings, 1.0) == pytest.approx(tokens / (20 * 1.0 + 20 * 0.01))


def test_an_acceptance_of_one_keeps_every_token() -> None:
    timings = [timing("target", 1.0, 5, {}, 0), timing("mxfp4", 0.25, 20, {4: 5}, 1.0)]
    assert predicted_speedup(timings, 1.0) == pytest.approx(5 / 2)


@pytest.mark.parametrize(
    "timings",
    [
        [timing("target", 1.0, 5, {}, 0)],
        [timing("target", 1.0, 5, {}, 0), timing("mxfp4", 0.25, 0, {}, 0)],
        [timing("target", 1.0, 5, {}, 0), timing("prompt-lookup", 0.25, 5, {}, 0)],
        [timing("target", 0.0, 0, {}, 0), timing("mxfp4", 0.25, 20, {4: 5}, 1.0)],
    ],
)
def test_without_drafts_or_proposals_there_is_no_prediction(timings: list[LevelTiming]) -> None:
    assert predicted_speedup(timings, 1.0) is None
    assert ml_specqd_speedup(timings, {"target": 1.0}) is None


def test_ml_specqds_equation_is_the_printed_one_and_again_for_a_draft_of_a_draft() -> None:
    target, draft = timing("target", 1.2, 10, {}, 0), timing("mxfp4", 0.3, 20, {4: 10}, 0.9)
    draft, small = replace(draft, num_accepted=28), replace(timing("small", 0.05, 60, {3: 20}, 0.6), num_accepted=24)
    alone = ml_specqd_speedup([target, replace(draft, pass_seconds=0.25, num_passes=40)], {"target": 1.0})
    assert alone == pytest.approx(round_speedup(28 / 40, 4, 1 / 0.25))
    costs = [LevelCost(1.0), LevelCost(0.25, 28 / 40, 4), LevelCost(0.05, 24 / 60, 3)]
    found = ml_specqd_speedup([target, draft, small], {"target": 1.0, "mxfp4": 0.25})
    assert found == pytest.approx(hierarchy_speedup(costs, accepted_tokens))


def test_timings_leave_the_prompts_rounds_out_and_cut_interruptions_short() -> None:
    target = LevelStatistics("target")
    draft = LevelStatistics("mxfp4")
    for proposed, accepted in ((4, 4), (2, 1), (2, 0)):
        draft.count(4, proposed, accepted)
    entries = [
        TraceEntry(0, "target", 0, 0, 0, 1, 9.0),  # the prompt
        TraceEntry(0, "mxfp4", 0, 0, 0, 0, 0.0),
        TraceEntry(1, "target", 0, 0, 0, 1, 1.0),
        TraceEntry(1, "mxfp4", 4, 4, 4, 4, 1.0),
        TraceEntry(2, "target", 0, 0, 0, 1, 1.25),
        TraceEntry(2, "mxfp4", 4, 2, 1, 2, 0.75),
        TraceEntry(3, "target", 0, 0, 0, 1, 8.0),  # interrupted
        TraceEntry(3, "mxfp4", 4, 2, 0, 2, 0.25),
    ]
    found = timings_of([Trace([target, draft], entries, 4)])
    assert found == [
        LevelTiming("target", (1.0 + 1.25 + 3 * 1.25) / 3, 3, {}, 0.0),
        LevelTiming("mxfp4", 0.25, 8, {1: 0, 2: 2, 3: 0, 4: 1}, 5 / 7, 5),
    ]


def test_of_independent_tokens_it_foretells_the_rate() -> None:
    """A simulated draft of mixed lengths, every token right with probability 0.7; a clock that counts passes."""
    rng = np.random.default_rng(0)
    draft, num_rounds, num_tokens = LevelStatistics("mxfp4"), 20_000, 0
    for _ in range(num_rounds):
        proposed = int(rng.choice([0, 1, 3, 8]))
        right = rng.random(proposed) < 0.7
        accepted = proposed if right.all() else int(right.argmin())
        if proposed:
            draft.count(8, proposed, accepted)
        num_tokens += accepted + 1
    seconds = draft.num_proposed * 0.2 + num_rounds * 1.1
    entries = [
        TraceEntry(1, "target", 0, 0, 0, num_rounds, num_rounds * 1.1),
        TraceEntry(1, "mxfp4", 0, 0, 0, draft.num_proposed, draft.num_proposed * 0.2),
    ]
    timings = timings_of([Trace([LevelStatistics("target"), draft], entries, num_rounds)])
    assert timings[1].acceptance == pytest.approx(0.7, abs=0.01)
    assert predicted_speedup(timings, 1.0) == pytest.approx(num_tokens / seconds, rel=0.01)
