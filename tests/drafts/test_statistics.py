"""Counts, rates, and a trace whose entries add up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mxconv.speculation.statistics import LevelStatistics, Trace, TraceEntry


def test_the_acceptance_rate_is_accepted_over_proposed_and_none_where_nothing_was() -> None:
    assert LevelStatistics("a", num_proposed=8, num_accepted=6).acceptance_rate == 0.75
    assert LevelStatistics("a", num_proposed=3).acceptance_rate == 0.0
    assert LevelStatistics("target", num_forwards=9).acceptance_rate is None


def test_tokens_behind_a_rejected_one_are_not_judged() -> None:
    level = LevelStatistics("a")
    for proposed, accepted in ((4, 4), (4, 1), (2, 0), (0, 0)):
        level.count(4, proposed, accepted)
    assert (level.num_proposed, level.num_accepted) == (10, 5)


def test_a_forward_pass_is_counted_and_timed_even_when_it_fails() -> None:
    level = LevelStatistics("a")
    with level.timed_pass():
        pass
    first = level.seconds
    assert (level.num_forwards, first > 0) == (1, True)
    with pytest.raises(ValueError, match="no"), level.timed_pass():
        raise ValueError("no")
    assert level.num_forwards == 2
    assert level.seconds > first


def test_proposals_are_counted_by_place() -> None:
    level = LevelStatistics("a")
    level.count(8, 3, 2)
    level.count(4, 4, 0)
    level.count(1, 1, 1)
    level.count(5, 0, 0)
    assert (level.num_asked, level.num_proposed, level.num_accepted) == (18, 8, 3)
    assert level.proposed_by_position == [3, 2, 2, 1]
    assert level.accepted_by_position == [2, 1]


def test_nodes_of_trees_are_counted_by_depth() -> None:
    level = LevelStatistics("a")
    level.count(8, 3, 2, widths=[4, 2, 1])
    level.count(2, 2, 1)
    level.count(1, 0, 0, widths=[])
    assert (level.num_proposed, level.num_nodes, level.num_accepted) == (5, 9, 3)
    assert level.nodes_by_depth == [5, 3, 1]
    assert level.proposed_by_position == [2, 2, 1]


ROUND = st.lists(st.tuples(*[st.integers(0, 9)] * 4, st.floats(0, 10)), min_size=2, max_size=2)


@given(rounds=st.lists(ROUND, max_size=8))
def test_the_entries_of_a_trace_are_what_each_round_added(
    rounds: list[list[tuple[int, int, int, int, float]]],
) -> None:
    levels = [LevelStatistics("target"), LevelStatistics("draft", 5, 4, 3, 6, 4, 2.0)]  # one has a past
    trace = Trace(levels)
    for added in rounds:
        trace.begin_round()
        for level, (asked, proposed, accepted, forwards, seconds) in zip(levels, added, strict=True):
            level.count(asked, proposed, accepted)
            level.num_forwards += forwards
            level.seconds += seconds
        trace.end_round()
    assert trace.num_rounds == len(rounds)
    expected = [
        TraceEntry(number, level.name, *part[:4], pytest.approx(part[4], abs=1e-9), part[1])  # type: ignore[arg-type]
        for number, added in enumerate(rounds)
        for level, part in zip(levels, added, strict=True)
    ]
    assert trace.entries == expected
