"""How long launches take one after the other, on the device's own clock.

On a GPU they are recorded into a CUDA graph, and what is timed is its replay, between two events: Python launches
nothing meanwhile, as in a decoder that replays graphs. A replay that is not timed goes before, so that the timed one
waits on the device and not for the host. In the interpreter they are called, by the host's clock.
"""

import time
from collections.abc import Callable, Sequence

import torch

from mxconv.gpu.recorded_call import RecordedCall


class Launches:
    """Some calls, always the same, in one order."""

    def __init__(self, device: torch.device, calls: Sequence[Callable[[], object]]) -> None:
        """Record them.

        Args:
            device: where they launch.
            calls: they wait for nothing and read the same memory each time.
        """
        self._device, self._calls = device, calls
        self._recorded: RecordedCall | None = None
        if device.type != "cuda":
            return
        self._recorded = RecordedCall(device, self._call_all)
        with torch.cuda.device(device):
            self._begin, self._end = _event(), _event()

    def seconds(self) -> float:
        """Of one of them, the mean over a run through all."""
        if self._recorded is None:
            begin = time.perf_counter()
            self._call_all()
            return max(time.perf_counter() - begin, 1e-9) / len(self._calls)
        with torch.cuda.device(self._device):
            self._recorded.replay()
            self._begin.record()
            self._recorded.replay()
            self._end.record()
            self._end.synchronize()
            return float(max(self._begin.elapsed_time(self._end), 1e-6)) / 1e3 / len(self._calls)

    def _call_all(self) -> None:
        for call in self._calls:
            call()


def _event() -> torch.cuda.Event:
    event: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    return event
