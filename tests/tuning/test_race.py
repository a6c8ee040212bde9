"""Successive halving against a clock that moves only when something is decoded."""

import pytest

from mxconv.tuning.race import PLAIN_EVERY, race


class Course:
    """Decoding takes `1 / speed` seconds; the machine may slow down as time goes by."""

    def __init__(self, speeds: dict[str, float], drift: float = 0.0) -> None:
        self.speeds = speeds
        self.drift = drift
        self.now = 100.0
        self.runs: list[tuple[str | None, int]] = []

    def clock(self) -> float:
        return self.now

    def seconds_of(self, entrant: str | None, prompt: int) -> float:
        self.runs.append((entrant, prompt))
        slowness = 1 + self.drift * (self.now - 100)
        seconds = slowness * (1.0 if entrant is None else 1 / self.speeds[entrant])
        self.now += seconds
        return seconds


SPEEDS = {"a": 0.5, "b": 1.5, "c": 2.0, "d": 0.9, "e": 1.4, "f": 0.7, "g": 1.1, "h": 0.6}


def test_the_fastest_wins_and_the_slower_half_is_left_behind_each_time() -> None:
    course = Course(SPEEDS)
    standings = race(list(SPEEDS), 3, course.seconds_of, 300, course.clock)
    assert [s.entrant for s in standings] == ["c", "b", "e", "g", "d", "f", "h", "a"]
    assert standings[0].speedup == pytest.approx(2.0)
    counts = {s.entrant: len(s.ratios) for s in standings}
    assert counts["c"] == counts["b"] == 9  # three rungs over all three prompts
    assert counts["e"] == counts["g"] == 6
    assert counts["a"] == counts["d"] == 3


@pytest.mark.parametrize("budget", [20, 60, 150])
def test_it_ends_in_its_budget_but_for_the_last_run(budget: float) -> None:
    course = Course(SPEEDS)
    standings = race(list(SPEEDS), 1000, course.seconds_of, budget, course.clock)
    assert standings[0].entrant == "c"
    assert course.now - 100 <= budget + 2
    assert course.now - 100 >= 0.8 * budget


def test_a_machine_that_slows_down_does_not_change_the_order() -> None:
    course = Course(SPEEDS, drift=0.02)
    standings = race(list(SPEEDS), 1000, course.seconds_of, 200, course.clock)
    assert [s.entrant for s in standings][:2] == ["c", "b"]
    assert standings[0].speedup == pytest.approx(2.0, rel=0.1)


def test_plain_decoding_stands_before_every_few_runs_on_the_same_prompt() -> None:
    course = Course(SPEEDS)
    race(list(SPEEDS), 2, course.seconds_of, 1000, course.clock)
    first = course.runs[: len(SPEEDS) + 2]
    assert [entrant for entrant, _ in first] == [None, "a", "b", "c", "d", None, "e", "f", "g", "h"]
    assert {prompt for _, prompt in first} == {0}
    assert PLAIN_EVERY == 4


def test_those_whose_turn_never_comes_are_not_listed() -> None:
    course = Course(SPEEDS)
    standings = race(list(SPEEDS), 5, course.seconds_of, 4, course.clock)  # plain 1, a 2, b 2/3, c 1/2: then it is over
    assert sorted(s.entrant for s in standings) == ["a", "b", "c"]
    assert standings[0].entrant == "c"


def test_without_any_time_the_first_runs_once() -> None:
    course = Course(SPEEDS)
    (standing,) = race(list(SPEEDS), 5, course.seconds_of, 0, course.clock)
    assert (standing.entrant, standing.ratios) == ("a", [0.5])


def test_one_alone_runs_every_prompt_once() -> None:
    course = Course({"b": 1.5})
    (standing,) = race(["b"], 7, course.seconds_of, 1000, course.clock)
    assert len(standing.ratios) == 7
    assert [prompt for entrant, prompt in course.runs if entrant == "b"] == list(range(7))


def test_a_prompt_that_was_not_finished_counts_for_nobody() -> None:
    course = Course({"a": 1.0, "b": 1.0})
    standings = race(["a", "b"], 100, course.seconds_of, 4, course.clock)  # plain, a, b: 3 seconds; plain, a: 5
    assert [len(s.ratios) for s in standings] == [1, 1]
