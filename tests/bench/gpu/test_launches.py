"""Launches one behind the other, and how long they take; a GPU is simulated: torch is asked, and answers for one."""

import contextlib
from typing import Any

import pytest

pytest.importorskip("torch", reason="mxconv[gpu] is not installed: torch is missing")

import torch

from mxconv.bench.gpu.launches import NUM_WARMUPS, Launches


def test_in_the_interpreter_all_are_called_in_their_order_each_time() -> None:
    called: list[str] = []
    launches = Launches(torch.device("cpu"), [lambda: called.append("first"), lambda: called.append("second")])
    assert called == []
    assert launches.seconds() > 0
    assert launches.seconds() > 0
    assert called == ["first", "second"] * 2


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a simulated GPU was asked to do; events are 3 ms apart."""
    said: list[str] = []

    class Graph:
        def replay(self) -> None:
            said.append("replay")

    class Event:
        def __init__(self, enable_timing: bool = False) -> None:
            assert enable_timing

        def record(self) -> None:
            said.append("event")

        def synchronize(self) -> None:
            said.append("wait")

        def elapsed_time(self, other: "Event") -> float:
            assert other is not self
            return 3.0

    class Stream:
        def wait_stream(self, other: "Stream") -> None:
            pass

    @contextlib.contextmanager
    def graph(_: Graph) -> Any:
        said.append("record")
        yield
        said.append("recorded")

    simulated = {
        "CUDAGraph": Graph,
        "Event": Event,
        "Stream": Stream,
        "graph": graph,
        "current_stream": Stream,
        "synchronize": lambda: None,
        "stream": lambda _: contextlib.nullcontext(),
        "device": lambda _: contextlib.nullcontext(),
    }
    for name, answer in simulated.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    return said


def test_on_a_gpu_a_graph_is_recorded_behind_warm_calls_and_its_second_replay_is_timed(done: list[str]) -> None:
    calls = [lambda: done.append("a"), lambda: done.append("b")]
    launches = Launches(torch.device("cuda:0"), calls)
    assert done == ["a", "b"] * NUM_WARMUPS + ["record", "a", "b", "recorded"]
    done.clear()
    assert launches.seconds() == pytest.approx(1.5e-3)  # of one of two
    assert done == ["replay", "event", "replay", "event", "wait"]
