"""A clock for studies of drafts."""

from itertools import count
from types import SimpleNamespace

import pytest


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that goes on by a nanosecond whenever it is read, so that what is studied depends on no machine."""
    clock = SimpleNamespace(perf_counter=(number * 1e-9 for number in count()).__next__)
    monkeypatch.setattr("mxconv.drafts.passes.time", clock)
