"""A GPU that is simulated: torch is asked to launch, record and wait, and answers for one."""

import contextlib
from typing import Any

import pytest
import torch


def simulate(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the GPU is asked to do from now on; events are 3 ms apart."""
    said: list[str] = []
    mode = 0

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
    def graph(_: Graph, pool: Any = None) -> Any:
        said.append("record" if pool is None else f"record in {pool}")
        yield
        said.append("recorded")

    def set_mode(wanted: Any) -> None:
        nonlocal mode
        mode = {"default": 0, "warn": 1, "error": 2}.get(wanted, wanted)
        said.append("no waiting" if mode == 2 else "waiting")

    simulated = {
        "CUDAGraph": Graph,
        "Event": Event,
        "Stream": Stream,
        "graph": graph,
        "current_stream": Stream,
        "synchronize": lambda: None,
        "stream": lambda _: contextlib.nullcontext(),
        "device": lambda _: contextlib.nullcontext(),
        "get_sync_debug_mode": lambda: mode,
        "set_sync_debug_mode": set_mode,
    }
    for name, answer in simulated.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    return said
