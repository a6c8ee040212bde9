"""Launches one behind the other, and how long they take."""

import pytest

pytest.importorskip("torch", reason="mxconv[gpu] is not installed: torch is missing")

import torch
from simulated_cuda import simulate

from mxconv.bench.gpu.launches import Launches


def test_in_the_interpreter_all_are_called_in_their_order_each_time() -> None:
    called: list[str] = []
    launches = Launches(torch.device("cpu"), [lambda: called.append("first"), lambda: called.append("second")])
    assert called == []
    assert launches.seconds() > 0
    assert launches.seconds() > 0
    assert called == ["first", "second"] * 2


def test_on_a_gpu_a_graph_is_recorded_and_its_second_replay_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    done = simulate(monkeypatch)
    calls = [lambda: done.append("a"), lambda: done.append("b")]
    launches = Launches(torch.device("cuda:0"), calls)
    assert done[-4:] == ["record", "a", "b", "recorded"]
    done.clear()
    assert launches.seconds() == pytest.approx(1.5e-3)  # of one of two
    assert done == ["replay", "event", "replay", "event", "wait"]
