"""How long launches take one after the other, on the device's own clock.

On a GPU they are recorded into a CUDA graph, and what is timed is its replay, between two events: Python launches
nothing meanwhile, as in a decoder that replays graphs. A replay that is not timed goes before, so that the timed one
waits on the device and not for the host. In the interpreter they are called, by the host's clock.
"""

import time
from collections.abc import Callable, Sequence

import torch

NUM_WARMUPS = 2  # before a graph is recorded: kernels are compiled, libraries make their plans


class Launches:
    """Some calls, always the same, in one order."""

    def __init__(self, device: torch.device, calls: Sequence[Callable[[], object]]) -> None:
        """Record them.

        Args:
            device: where they launch.
            calls: they wait for nothing and read the same memory each time.
        """
        self._calls = calls
        self._graph: torch.cuda.CUDAGraph | None = None
        if device.type != "cuda":
            return
        with torch.cuda.device(device):
            beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            beside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(beside):
                for _ in range(NUM_WARMUPS):
                    for call in calls:
                        call()
            torch.cuda.current_stream().wait_stream(beside)
            torch.cuda.synchronize()
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                for call in calls:
                    call()
            self._begin, self._end = _event(), _event()
        self._device = device

    def seconds(self) -> float:
        """Of one of them, the mean over a run through all."""
        if self._graph is None:
            begin = time.perf_counter()
            for call in self._calls:
                call()
            return max(time.perf_counter() - begin, 1e-9) / len(self._calls)
        with torch.cuda.device(self._device):
            self._graph.replay()
            self._begin.record()
            self._graph.replay()
            self._end.record()
            self._end.synchronize()
            return float(max(self._begin.elapsed_time(self._end), 1e-6)) / 1e3 / len(self._calls)


def _event() -> torch.cuda.Event:
    event: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    return event
