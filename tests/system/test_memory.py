"""Peak memory by each of the ways in which systems tell it."""

import sys
from pathlib import Path

import numpy as np
import pytest

from mxconv.system import memory
from mxconv.system.memory import peak_rss_bytes


def grows() -> None:
    before = peak_rss_bytes()
    grown = np.ones(before + 20_000_000, np.uint8)
    assert grown.nbytes < peak_rss_bytes() < 3 * grown.nbytes


def test_the_peak_is_of_this_process() -> None:
    grows()


@pytest.mark.skipif(sys.platform != "linux", reason="a way of Linux")
def test_without_proc_the_systems_count_of_pages_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = peak_rss_bytes()
    monkeypatch.setattr(memory, "STATUS", Path("/absent/status"))
    assert listed / 2 < peak_rss_bytes() < 2 * listed
    grows()


@pytest.mark.skipif(sys.platform != "linux", reason="pretends to be another system on Linux")
def test_macos_counts_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "STATUS", Path("/absent/status"))
    kilobytes = peak_rss_bytes() // 1024
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(sys, "platform", "darwin")
        found = peak_rss_bytes()
    assert kilobytes <= found < 2 * kilobytes  # Linux's kilobytes, taken for bytes
