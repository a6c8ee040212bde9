import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mxconv.codecs.float16 import BF16, FP16
from mxconv.report.bars import MARGIN, bar_chart
from mxconv.report.exponents import ExponentCounts


def exponents(fields: dict[int, int], num_zero: int = 0) -> ExponentCounts:
    counts = np.zeros(256, np.int64)
    for field, count in fields.items():
        counts[field] = count
    counts[0] += num_zero
    return ExponentCounts(BF16, counts, num_zero, 1.0)


@given(st.dictionaries(st.integers(0, 254), st.integers(1, 10**9), min_size=1, max_size=60), st.integers(0, 9))
def test_bars_hold_every_weight_once_and_show_it(fields: dict[int, int], num_zero: int) -> None:
    chart = bar_chart(exponents(fields, num_zero))
    assert chart is not None
    assert sum(bar.count for bar in chart.bars) == sum(fields.values())
    assert [bar.first for bar in chart.bars[1:]] == [bar.last + 1 for bar in chart.bars[:-1]]
    assert all((bar.length > 0) == (bar.count > 0) and bar.length <= 1 for bar in chart.bars)
    assert len(chart.bars) <= 16 + 2 * (MARGIN + 1)
    low, high = chart.window
    inside = [bar for bar in chart.bars if bar.place == "inside"]
    assert [bar.first for bar in inside] == list(range(low, high + 1))
    assert chart.num_below == sum(bar.count for bar in chart.bars if bar.place == "below")
    assert chart.num_above == sum(bar.count for bar in chart.bars if bar.place == "above")


def test_far_tails_share_a_bar() -> None:
    chart = bar_chart(exponents({60: 1, 61: 2, 110: 50, 120: 50, 200: 3}))
    assert chart is not None
    lowest, highest = chart.bars[0], chart.bars[-1]
    assert (lowest.label, lowest.count, lowest.magnitudes) == ("≤ 103", 3, "< 2^-23")
    assert (highest.label, highest.count, highest.magnitudes) == ("≥ 132", 3, "≥ 2^5")


def test_the_scale_is_linear_only_where_small_bars_stay_visible() -> None:
    linear, log = bar_chart(exponents({100: 40, 101: 1})), bar_chart(exponents({100: 41, 101: 1}))
    assert linear is not None and log is not None
    assert (linear.scale, log.scale) == ("linear", "log")


def test_subnormals_are_named_by_what_they_lie_below() -> None:
    fields = np.zeros(32, np.int64)
    fields[[0, 3]] = 5, 5
    chart = bar_chart(ExponentCounts(FP16, fields, 0, 1.0))
    assert chart is not None
    assert [bar.magnitudes for bar in chart.bars[:2]] == ["< 2^-14", "2^-14"]


def test_nothing_but_zeros_has_no_bars() -> None:
    assert bar_chart(exponents({}, num_zero=7)) is None
