"""Which positions sinks and a window leave in sight."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mxconv.engine.sight import SinkWindow
from mxconv.errors import ModelError


@given(
    sink=st.integers(0, 12),
    window=st.integers(1, 12),
    stop=st.integers(1, 30),
    own_window=st.none() | st.integers(1, 12),
)
def test_visible_are_the_first_and_the_last_positions_within_the_layers_own_window(
    sink: int, window: int, stop: int, own_window: int | None
) -> None:
    itself = stop - 1
    expected = [
        position
        for position in range(stop)
        if (position < sink or itself - position < window) and (own_window is None or itself - position < own_window)
    ]
    sinks, others = SinkWindow(sink, window).visible(stop, own_window)
    assert [*sinks, *others] == expected
    assert len(sinks) == 0 or sinks.stop < others.start  # read in one piece where it is one


@pytest.mark.parametrize(
    ("sink", "window", "message"),
    [
        (-1, 4, r"^attention sink: -1 positions; at least 0 is required\.$"),
        (4, 0, r"^attention window: 0 positions; at least 1 is required\.$"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(sink: int, window: int, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        SinkWindow(sink, window)
