"""Stages: every window once before any again, whatever the step one begins at; rates as they are said."""

import numpy as np
import pytest

from mxconv.train.schedule import Stage, stage_of
from mxconv.train.windows import Windows

WINDOWS = Windows(np.arange(35, dtype=np.int32).reshape(7, 5))


def stage(name: str = "text", num_steps: int = 14, batch_size: int = 3) -> Stage:
    return Stage(name, WINDOWS, num_steps, batch_size, 1e-3, 1e-4)


def test_every_window_comes_once_before_any_comes_again() -> None:
    rows = np.concatenate([stage().rows(step, 5) for step in range(14)])
    firsts = (rows[:, 0] // 5).tolist()
    assert len(firsts) == 42
    for epoch in range(6):
        assert sorted(firsts[7 * epoch : 7 * epoch + 7]) == list(range(7))
    assert firsts[:7] != firsts[7:14]
    np.testing.assert_array_equal(stage().rows(9, 5), rows[27:30])
    assert (stage().rows(0, 6) != rows[:3]).any()


def test_a_batch_may_be_larger_than_the_corpus() -> None:
    rows = stage(batch_size=20).rows(0, 0)
    assert sorted(np.bincount(rows[:, 0] // 5, minlength=7).tolist()) == [2, 3, 3, 3, 3, 3, 3]


def test_the_rate_rises_for_a_twentieth_and_falls_along_a_cosine() -> None:
    long = stage(num_steps=100)
    rates = [long.learning_rate(step) for step in range(100)]
    assert rates[:5] == pytest.approx([2e-4, 4e-4, 6e-4, 8e-4, 1e-3])
    assert max(rates) == pytest.approx(1e-3)
    assert rates[4:] == sorted(rates[4:], reverse=True)
    middle = 5 + 95 / 2
    assert (rates[int(middle)] + rates[int(middle) + 1]) / 2 == pytest.approx(5.5e-4, rel=0.01)
    assert rates[-1] == pytest.approx(1e-4, rel=0.01)


def test_steps_of_all_stages() -> None:
    stages = [stage("text", 3), stage("own text", 2)]
    assert [(found.name, place) for found, place in (stage_of(stages, step) for step in range(5))] == [
        ("text", 0),
        ("text", 1),
        ("text", 2),
        ("own text", 0),
        ("own text", 1),
    ]
    with pytest.raises(IndexError):
        stage_of(stages, 5)
    assert stages[0].num_tokens == 3 * 3 * 5
