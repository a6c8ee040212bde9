"""Figures of a load, from moments that are known."""

from dataclasses import replace

import pytest

from mxconv.bench.serving.asked import Answered
from mxconv.bench.serving.load import ClosedLoop, Poisson
from mxconv.bench.serving.result import Turn, Waiting, summarize

# two requests: three chunks of 1, 2 and 1 tokens; one chunk of 3
FIRST = Answered(10.0, [10.5, 11.1, 11.4], [1, 2, 1], [5, 6, 7, 8])
SECOND = Answered(10.2, [12.0], [3], [1, 2, 3])
FAILED = Answered(10.1, [10.2], [1], [9], error="the stream was cut")
EXPECTED = [[5, 6, 7, 8], [1, 2, 3]]


def test_tokens_waiting_and_speed() -> None:
    plain = Turn([replace(FIRST, began=8.5), SECOND], 2e9)
    found = summarize(ClosedLoop(2), True, [Turn([FIRST, SECOND], 3e9)], [plain], EXPECTED)
    assert (found.load, found.concurrency, found.rate, found.drafts) == ("2 at a time", 2, None, True)
    assert (found.num_ok, found.num_failed, found.num_tokens, found.errors) == (2, 0, 7, [])
    assert found.seconds == pytest.approx(2.0) and found.tokens_per_second == pytest.approx(3.5)
    assert found.speedup == pytest.approx(3.5 / 2)
    assert found.first_token is not None and found.first_token.median == pytest.approx((0.5 + 1.8) / 2)
    assert found.between_tokens is not None and found.between_tokens.median == pytest.approx(0.3)  # 0.3, 0.3, 0.3
    assert found.between_chunks is not None and found.between_chunks.median == pytest.approx(0.45)
    assert found.between_chunks.p99 == pytest.approx(0.6, rel=0.01)
    assert found.request is not None and found.request.median == pytest.approx((1.4 + 1.8) / 2)
    assert found.read_bandwidth == pytest.approx(3.0) and found.identical


def test_what_failed_counts_as_such_and_not_as_tokens() -> None:
    found = summarize(Poisson(2.0), False, [Turn([FAILED, SECOND], None)], None, EXPECTED)
    assert (found.load, found.concurrency, found.rate) == ("2 a second", None, 2.0)
    assert (found.num_ok, found.num_failed, found.num_tokens, found.errors) == (1, 1, 3, ["the stream was cut"])
    assert found.seconds == pytest.approx(1.9)  # from the first one that asked
    assert (found.speedup, found.between_tokens, found.read_bandwidth) == (None, None, None)
    assert found.identical and found.first_token == Waiting(pytest.approx(1.8), pytest.approx(1.8))


@pytest.mark.parametrize("spoiled", [[5, 6, 7, 9], [5, 6, 7], [5, 6, 7, 8, 9]])
def test_one_other_token_in_any_round_is_seen(spoiled: list[int]) -> None:
    turns = [Turn([FIRST, SECOND], None), Turn([replace(FIRST, token_ids=spoiled), SECOND], None)]
    assert not summarize(ClosedLoop(1), True, turns, None, EXPECTED).identical
    assert summarize(ClosedLoop(1), True, turns[:1], None, EXPECTED).identical
    assert summarize(ClosedLoop(1), True, turns, None, [None, [1, 2, 3]]).identical  # nobody knows
