"""Launches one after the other and how long they take, and what is read meanwhile. The GPU is simulated."""

import contextlib
from typing import Any

import pytest

pytest.importorskip("torch", reason="mxconv[gpu] is not installed: torch is missing")
pytest.importorskip("triton", reason="mxconv[gpu] is not installed: pip install triton")

import torch
from gpu_weights import DEVICE

from mxconv.bench.gpu_clock import INTERPRETER, GpuReadBandwidth, Launches, cache_bytes, gpu_machine


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the simulated GPU is asked to do; events are 3 ms apart."""
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
            said.append("join")

    @contextlib.contextmanager
    def graph(_: Graph) -> Any:
        said.append("record")
        yield
        said.append("recorded")

    nothing = lambda _: contextlib.nullcontext()  # noqa: E731
    simulated = {"CUDAGraph": Graph, "Event": Event, "Stream": Stream, "graph": graph, "current_stream": Stream,
                 "stream": nothing, "device": nothing}  # fmt: skip
    for name, answer in simulated.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    return said


def test_in_the_interpreter_all_are_called_in_their_order_each_time() -> None:
    called: list[str] = []
    launches = Launches(torch.device("cpu"), [lambda: called.append("first"), lambda: called.append("second")])
    assert called == []
    assert min(launches.seconds(), launches.seconds()) > 0
    assert called == ["first", "second"] * 2


def test_on_a_gpu_a_graph_is_recorded_and_its_second_replay_is_timed(done: list[str]) -> None:
    launches = Launches(torch.device("cuda:0"), [lambda: done.append("a"), lambda: done.append("b")])
    assert done == ["join", "a", "b", "join", "record", "a", "b", "recorded"]
    done.clear()
    assert launches.seconds() == pytest.approx(1.5e-3)  # of one of two
    assert done == ["replay", "event", "replay", "event", "wait"]


@pytest.mark.parametrize(("array", "piece", "count"), [(4096, 1024, 4), (4096, 1000, 4), (1000, 4096, 1)])
def test_reads_go_through_the_array_piece_by_piece(
    array: int, piece: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[torch.Tensor] = []
    add = torch.sum

    def recorded(numbers: torch.Tensor, dim: int, out: torch.Tensor) -> None:
        read.append(numbers)
        add(numbers, dim=dim, out=out)  # a CUDA graph of nothing is refused

    monkeypatch.setattr(torch, "sum", recorded)
    sample = GpuReadBandwidth(DEVICE, array).of(piece, 6)
    assert sample() > 0
    assert {each.nbytes for each in read} == {min(piece, array)}
    assert len({each.data_ptr() for each in read}) == count
    assert len(read) % 6 == 0


def test_the_machine_names_its_gpu_and_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    class Properties:
        major, minor, total_memory, L2_cache_size = 9, 0, 80 << 30, 50 << 20

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Properties)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "A GPU")
    device = torch.device("cuda:0")
    found = gpu_machine(device)
    assert (found.gpu, found.compute_capability, found.described) == ("A GPU", "9.0", "A GPU")
    assert (found.memory_bytes, found.l2_cache_bytes, cache_bytes(device)) == (80 << 30, 50 << 20, 50 << 20)
    assert (found.torch, found.cuda) == (torch.__version__, torch.version.cuda)
    interpreted = gpu_machine(torch.device("cpu"))
    assert (interpreted.gpu, interpreted.l2_cache_bytes) == (INTERPRETER, None)
