"""The adaptive pace on simulated machines, whose best fixed choice and whose plain speed are known.

Times are counted without the noise that the pace is told, so that every bound is about its choices.
"""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from simulated_machine import SimulatedDraft, SimulatedMachine

from mxconv.speculation.pacing.adaptive_pace import MAX_ADAPTIVE_TOKENS, AdaptivePace
from mxconv.speculation.pacing.pace import Choice, FixedPace, Outcome, Pace
from mxconv.speculation.pacing.paces import paces
from mxconv.speculation.pacing.pass_estimate import PassEstimate

SELF = SimulatedDraft(acceptance=0.8, seconds=0.3)  # a 4-bit copy
SMALL = SimulatedDraft(acceptance=0.6, seconds=0.05, catch_up_seconds=0.01)  # another model
LOOK_UP = SimulatedDraft(acceptance=0.7, seconds=0.001, starts=0.3)
GOOD = {
    "a 4-bit copy": [SELF],
    "a 4-bit copy that is nearly always right": [replace(SELF, acceptance=0.95)],
    "a 4-bit copy that stops where it doubts": [SimulatedDraft(0.85, 0.28, keeps_on=0.8)],
    "a copy that hardly pays": [replace(SELF, acceptance=0.5)],
    "a small model": [SMALL],
    "a small model that is nearly always right": [replace(SMALL, acceptance=0.9)],
    "a look-up": [LOOK_UP],
    "two, the first better": [replace(SELF, acceptance=0.95), replace(SMALL, acceptance=0.3)],
    "two, the second better": [SELF, SMALL],
    "three": [replace(SELF, acceptance=0.9), replace(SMALL, acceptance=0.5), replace(LOOK_UP, starts=0.15)],
}
USELESS = {
    "a 4-bit copy": [replace(SELF, acceptance=0.0)],
    "one that is right at times, and too seldom": [replace(SELF, acceptance=0.2)],
    "a small model": [replace(SMALL, acceptance=0.0)],
    "one that has to read a prompt first": [SimulatedDraft(0.0, 0.1, catch_up_seconds=0.03)],
    "a look-up": [replace(LOOK_UP, acceptance=0.0, starts=1.0)],
    "one that tells how sure it is, and is wrong": [SimulatedDraft(0.0, 0.3, doubt=30.0)],
    "one as slow as the level": [SimulatedDraft(0.0, 1.0)],
    "one twice as slow": [SimulatedDraft(0.0, 2.0)],
    "three": [replace(draft, acceptance=0.0) for draft in (SELF, SMALL, LOOK_UP)],
    "four": [SimulatedDraft(0.0, 0.3), SimulatedDraft(0.05, 0.3), SimulatedDraft(0.0, 1.0), SimulatedDraft(0.1, 0.2)],
}
SEEDS = range(5)


def relative_seconds(
    drafts: list[SimulatedDraft], num_tokens: int, noise: float, seed: int, slope: float = 0.03
) -> float:
    """Seconds a token, in plain passes."""
    machine = SimulatedMachine(drafts, slope, noise, seed)
    machine.run(AdaptivePace(len(drafts)), num_tokens)
    return machine.seconds / (machine.num_tokens - 1)


@pytest.mark.parametrize("slope", [0.03, 0.1])
@pytest.mark.parametrize("noise", [0.0, 0.15])
@pytest.mark.parametrize("case", GOOD)
def test_it_comes_within_a_few_percent_of_the_best_fixed_choice(case: str, noise: float, slope: float) -> None:
    ratios = []
    for seed in SEEDS:
        machine = SimulatedMachine(GOOD[case], slope, noise, seed)
        pace = AdaptivePace(len(GOOD[case]))
        machine.run(pace, 500)
        learned = machine.num_tokens, machine.seconds
        machine.run(pace, 2000)
        rate = (machine.num_tokens - learned[0]) / (machine.seconds - learned[1])
        ratios.append(rate / machine.best_rate())
    # two that are nearly as good are told apart by trials alone, which takes time
    assert np.mean(ratios) > (0.96 if len(GOOD[case]) == 1 else 0.93), ratios
    assert min(ratios) > (0.85 if len(GOOD[case]) == 1 else 0.8), ratios


@pytest.mark.parametrize("noise", [0.0, 0.15])
@pytest.mark.parametrize("doubt", [0.15, 0.3, 0.6, 1.0])
@pytest.mark.parametrize("seconds", [0.02, 0.25])
def test_a_draft_that_tells_its_doubts_is_stopped_in_time(doubt: float, seconds: float, noise: float) -> None:
    """As fast as with the best of many thresholds; some of these are much worse."""

    def rate(pace: Pace, confidence: float = 0.0) -> float:
        machine = SimulatedMachine([SimulatedDraft(0.0, seconds, doubt=doubt, confidence=confidence)], 0.06, noise)
        machine.run(pace, 500)
        learned = machine.num_tokens, machine.seconds
        machine.run(pace, 6000)
        return (machine.num_tokens - learned[0]) / (machine.seconds - learned[1])

    fixed = [rate(FixedPace(number), 0.1 * tenth) for number in (4, 16) for tenth in range(10)]
    assert rate(AdaptivePace(1)) > 0.97 * max(1.0, *fixed)
    assert min(fixed) < 0.9 * max(fixed)


@pytest.mark.parametrize("sets_floors", [True, False])
def test_thresholds_that_were_given_stay(sets_floors: bool) -> None:
    machine = SimulatedMachine([SimulatedDraft(0.0, 0.2, doubt=0.3)])
    for pace in paces(True, [8], sets_floors):
        machine.run(pace, 200)
    floors = [choice.floor for choice in machine.choices if choice.num_tokens > 1]
    assert floors
    assert all((floor is not None) == sets_floors for floor in floors)


@pytest.mark.parametrize("case", GOOD)
def test_a_good_draft_already_helps_a_short_text(case: str) -> None:
    means = np.mean([relative_seconds(GOOD[case], 64, 0.15, seed) for seed in range(20)])
    best = 1 / SimulatedMachine(GOOD[case]).best_rate()
    assert means < 1 - 0.6 * (1 - best)


@pytest.mark.parametrize("slope", [0.0, 0.1])
@pytest.mark.parametrize("num_tokens", [64, 128, 500, 2000])
@pytest.mark.parametrize("case", USELESS)
def test_useless_drafts_never_cost_5_percent(case: str, num_tokens: int, slope: float) -> None:
    for seed in SEEDS:
        assert relative_seconds(USELESS[case], num_tokens, 0.0, seed, slope) < 1.05


@pytest.mark.parametrize("noise", [0.15, 0.3])
@pytest.mark.parametrize("num_tokens", [64, 500, 2000])
@pytest.mark.parametrize("case", USELESS)
def test_useless_drafts_never_cost_5_percent_where_times_vary(case: str, num_tokens: int, noise: float) -> None:
    """On average over short runs, whose few times say little; in each of the longer ones."""
    seconds = [
        relative_seconds(USELESS[case], num_tokens, noise, seed) for seed in range(20 if num_tokens == 64 else 4)
    ]
    assert np.mean(seconds) < 1.05
    assert max(seconds) < (1.09 if num_tokens < 500 else 1.05)


def test_many_short_texts_cost_5_percent_at_most_though_each_prompt_has_to_be_read() -> None:
    drafts = [SimulatedDraft(0.0, 0.3), SimulatedDraft(0.0, 0.05, catch_up_seconds=0.03), SimulatedDraft(0.0, 0.001)]
    machine = SimulatedMachine(drafts, noise=0.15)
    pace = AdaptivePace(3)
    for _ in range(40):
        machine.run(pace, 64, prompt=60)
    assert machine.seconds < 1.05 * (machine.num_tokens - 40)


@pytest.mark.parametrize("case", USELESS)
def test_short_prompts_change_no_bound(case: str) -> None:
    machine = SimulatedMachine(USELESS[case])
    pace = AdaptivePace(len(machine.drafts))
    for _ in range(10):
        machine.run(pace, 64, prompt=3)
    assert machine.seconds < 1.05 * (machine.num_tokens - 10)


def test_these_bounds_can_be_missed() -> None:
    machine = SimulatedMachine([replace(SELF, acceptance=0.0)])
    machine.run(FixedPace(1), 500)
    assert machine.seconds > 1.3 * machine.num_tokens
    machine = SimulatedMachine([SELF])
    machine.run(FixedPace(16), 2000)
    assert machine.num_tokens / machine.seconds < 0.8 * machine.best_rate()


@pytest.mark.parametrize("case", GOOD)
@pytest.mark.parametrize("noise", [0.0, 0.15])
def test_drafts_that_turn_useless_are_given_up_and_come_back_when_they_are_good_again(case: str, noise: float) -> None:
    good = GOOD[case]
    lost, found_again = [], []
    for seed in SEEDS:
        machine = SimulatedMachine(good, noise=noise, seed=seed)
        pace = AdaptivePace(len(good))
        machine.run(pace, 300)
        gained = machine.num_tokens - machine.seconds
        machine.drafts = [replace(draft, acceptance=0.0) for draft in good]
        before = machine.seconds
        machine.run(pace, 500)
        lost.append(machine.seconds - before - 500)
        assert machine.seconds < 1.05 * machine.num_tokens
        assert gained > 0 or case == "a copy that hardly pays"
        machine.drafts = good
        before = machine.seconds
        machine.run(pace, 1500)
        found_again.append(1500 / (machine.seconds - before) / machine.best_rate())
    assert np.mean(lost) < 0.05 * 500
    assert np.mean(found_again) > 0.85


@pytest.mark.parametrize("speeds", [(1.0, 0.4, 1.0), (1.0, 3.0, 1.0), (1.0, 0.7, 0.5, 1.5)])
@pytest.mark.parametrize("case", ["a 4-bit copy", "two, the second better", "a look-up"])
def test_a_machine_that_becomes_slower_or_faster_changes_little(case: str, speeds: tuple[float, ...]) -> None:
    """As when another program takes memory bandwidth, and then does not."""
    ratios, useless = [], []
    for seed in SEEDS:
        for drafts, results in ((GOOD[case], ratios), ([replace(d, acceptance=0.0) for d in GOOD[case]], useless)):
            machine = SimulatedMachine(drafts, noise=0.1, seed=seed)
            pace = AdaptivePace(len(drafts))
            for speed in speeds:
                machine.speed = speed
                machine.run(pace, 400)
            results.append(machine.num_tokens / machine.seconds / machine.best_rate())
    assert np.mean(ratios) > 0.85, ratios
    assert min(useless) > 1 / 1.05


def test_a_draft_that_says_nothing_is_asked_all_the_same_where_that_is_cheap() -> None:
    machine = SimulatedMachine([replace(LOOK_UP, starts=0.05)])
    machine.run(AdaptivePace(1), 2000)
    assert machine.num_tokens / machine.seconds > 1.0


def test_an_interruption_is_not_believed() -> None:
    pace = AdaptivePace(1)
    machine = SimulatedMachine([SELF])
    machine.run(pace, 300)
    pace.learn(Choice(0, 4), Outcome(4, 4, 5, 100.0, 1.12))
    machine.choices.clear()
    before = machine.seconds
    machine.run(pace, 300)
    assert 300 / (machine.seconds - before) > 0.85 * machine.best_rate()


def test_a_wide_pass_that_was_interrupted_is_no_dearer_than_one_by_one() -> None:
    """Else a short prompt that took long would keep drafts from ever being tried."""
    known = PassEstimate()
    known.add(4, 1.0)
    known.add(1, 0.001)
    assert known.line() == (0.001, 0.001)


@dataclass
class NestedMachine(SimulatedMachine):
    """A level whose first draft is a level too, with the second as its own draft."""

    def __post_init__(self) -> None:
        super().__post_init__()
        first, second = self.drafts
        self.inner = SimulatedMachine([replace(second, seconds=second.seconds / first.seconds)], self.slope, self.noise)
        self.inner_pace = AdaptivePace(1)

    def draft_seconds(self, draft: int, num_tokens: int) -> float:
        if draft == 1:
            return super().draft_seconds(draft, num_tokens)
        before, end = self.inner.seconds, self.inner.num_tokens + num_tokens
        while self.inner.num_tokens < end:
            limit = end - self.inner.num_tokens - 1
            self.inner.round(self.inner_pace, self.inner_pace.choose(limit) if limit else Choice(0, 0))
        return (self.inner.seconds - before) * self.drafts[0].seconds


@pytest.mark.parametrize(("acceptance", "at_least"), [(0.85, 1.0), (0.0, 1 / 1.05)])
def test_a_draft_with_an_adaptive_draft_of_its_own(acceptance: float, at_least: float) -> None:
    """Where both levels choose, the whole is at least as fast as the first draft without its own."""
    for seed in SEEDS:
        drafts = [SimulatedDraft(acceptance, 0.4), SimulatedDraft(acceptance * 0.9, 0.03)]
        machine = NestedMachine(drafts, noise=0.1, seed=seed)
        machine.run(AdaptivePace(2), 2000)
        alone = max(drafts[0].expected_rate(n, machine.slope) for n in range(1, 17))
        assert machine.num_tokens / machine.seconds > at_least * max(alone, 1.0)


@pytest.mark.parametrize("limit", [1, 2, 5, 100])
def test_it_asks_for_no_more_than_the_limit(limit: int) -> None:
    machine = SimulatedMachine([SimulatedDraft(0.99, 0.001)])
    pace = AdaptivePace(1)
    machine.run(pace, 200)
    for _ in range(20):
        assert 0 <= pace.choose(limit).num_tokens <= min(limit, MAX_ADAPTIVE_TOKENS)
    assert pace.choose(100).num_tokens == MAX_ADAPTIVE_TOKENS


def test_the_first_rounds_are_plain_and_only_drafts_that_exist_are_asked() -> None:
    machine = SimulatedMachine(GOOD["three"])
    machine.run(AdaptivePace(3), 500)
    assert machine.choices[0] == Choice(0, 0)
    assert {choice.draft for choice in machine.choices if choice.num_tokens} == {0, 1, 2}
    alone = AdaptivePace(0)
    alone.learn(Choice(0, 0), Outcome(0, 0, 1, 0.0, 1.0))
    assert alone.choose(5) == Choice(0, 0)


def test_a_fixed_pace_asks_the_next_level_for_its_number() -> None:
    pace = FixedPace(4)
    pace.learn(Choice(0, 4), Outcome(4, 0, 5, 1.0, 1.0))
    assert [pace.choose(limit) for limit in (1, 4, 9)] == [Choice(0, 1), Choice(0, 4), Choice(0, 4)]


def test_every_level_with_drafts_has_a_pace_of_its_own() -> None:
    assert paces(False, [3, 8]) == [FixedPace(3), FixedPace(8)]
    adaptive = paces(True, [3, 8, 8])
    assert [len(pace._known) for pace in adaptive if isinstance(pace, AdaptivePace)] == [3, 2, 1]
    assert paces(True, []) == []
