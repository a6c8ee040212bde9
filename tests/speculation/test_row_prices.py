"""Prices of rows: lines between what was seen, never falling, and a slope for what was not."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mxconv.speculation.pacing.pass_estimate import NARROW_SLOPE
from mxconv.speculation.pacing.row_prices import RowPrices


def test_widths_between_those_seen_lie_on_lines_and_wider_ones_follow_the_steepest() -> None:
    prices = RowPrices()
    for width, seconds in ((1, 1.0), (4, 1.3), (8, 2.1)):
        prices.add(width, seconds)
    assert [prices.seconds(width) for width in (1, 2, 4, 6, 8)] == pytest.approx([1.0, 1.1, 1.3, 1.7, 2.1])
    assert prices.seconds(16) == pytest.approx(2.1 + 8 * 0.2)


def test_before_anything_wide_was_seen_a_row_has_the_usual_price() -> None:
    prices = RowPrices()
    assert prices.seconds(3) == 0.0
    prices.add(1, 2.0)
    assert prices.seconds(11) == pytest.approx(2.0 + 10 * NARROW_SLOPE * 2.0)
    prices.add(2000, 900.0)  # wider than all that is kept
    assert prices.seconds(64) < 10


def test_widths_that_are_taken_together_stand_at_their_mean() -> None:
    prices = RowPrices()
    for width, seconds in ((1, 3.0), (8, 3.7), (9, 6.0), (11, 6.2)):  # 9 to 12 are one
        prices.add(width, seconds)
    assert prices.seconds(8) == pytest.approx(3.7)
    assert prices.seconds(10) == pytest.approx(6.1)
    assert prices.seconds(12) == pytest.approx(6.1 + 2 * (6.1 - 3.7) / 2)


@given(st.lists(st.tuples(st.integers(1, 64), st.floats(0.001, 10)), min_size=1, max_size=30))
def test_more_rows_never_cost_less(passes: list[tuple[int, float]]) -> None:
    prices = RowPrices()
    for width, seconds in passes:
        prices.add(width, seconds)
    found = [prices.seconds(width) for width in range(1, 65)]
    assert all(later >= earlier - 1e-9 for earlier, later in pairwise(found))


def experts(num_rows: float) -> float:
    """What rows read of a mixture that sends each to 8 of 128 experts, which are nine tenths of what one row reads."""
    return 0.1 + 0.9 * 16 * (1 - (1 - 8 / 128) ** num_rows)


def test_rows_that_bring_experts_are_dear_at_first() -> None:
    prices, flat = RowPrices(experts), RowPrices()
    assert prices.seconds(3) == 0.0
    prices.add(1, 1.0)
    for width in (2, 4, 16):  # before anything wide was seen they cost what they read
        assert prices.seconds(width) == pytest.approx(experts(width) + NARROW_SLOPE * (width - 1))
    for width in (12, 48):
        prices.add(width, experts(width))
    for each in ((1, 1.0), (12, experts(12)), (48, experts(48))):
        flat.add(*each)
    for width in (2, 3, 5, 8, 24, 32):
        assert prices.seconds(width) == pytest.approx(experts(width), rel=0.12)
    assert flat.seconds(8) < 0.6 * experts(8)  # where every further row is taken to cost as much as the one before it


def test_experts_that_rows_agree_on_cost_what_was_measured() -> None:
    prices = RowPrices(experts)
    for width in (1, 4, 8):
        prices.add(width, 1 + 0.1 * (width - 1))
    assert prices.seconds(8) == pytest.approx(1.7)
    assert prices.seconds(4) == pytest.approx(1.3, rel=0.05)
    assert 1.7 < prices.seconds(16) < 4


@given(st.lists(st.tuples(st.integers(1, 64), st.floats(0.001, 10)), min_size=1, max_size=30))
def test_more_rows_of_a_mixture_never_cost_less(passes: list[tuple[int, float]]) -> None:
    prices = RowPrices(experts)
    for width, seconds in passes:
        prices.add(width, seconds)
    found = [prices.seconds(width) for width in range(1, 65)]
    assert all(later >= earlier - 1e-9 for earlier, later in pairwise(found))
