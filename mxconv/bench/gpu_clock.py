"""How long launches on a GPU take, what it reads a second at that moment, and which GPU it is.

Launches are recorded into a CUDA graph, and its replay is timed between two events, so that Python's launches do not
count. In Triton's interpreter they are called and timed by the host's clock: a test, since such times mean nothing.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import triton

from mxconv.bench.machine import checkout_commit
from mxconv.system.processor import cpu_name

INTERPRETER = "no GPU: Triton's interpreter"
INTERPRETED_CACHE_BYTES = 1 << 10  # stands in for an L2 cache, so that there are two copies


@dataclass(frozen=True)
class GpuMachine:
    """A GPU, and the software that launched on it."""

    gpu: str
    compute_capability: str | None  # None in the interpreter, as the next three
    memory_bytes: int | None
    l2_cache_bytes: int | None
    cuda: str | None  # that torch was built with
    torch: str
    triton: str
    cpu: str  # of the host
    commit: str | None  # of the checkout that mxconv runs from, followed by "+" where files differ; else None

    @property
    def described(self) -> str:
        """A short name, for pictures."""
        return self.gpu


def gpu_machine(device: torch.device) -> GpuMachine:
    """Describe a device."""
    versions = {"torch": torch.__version__, "triton": triton.__version__, "cpu": cpu_name()}
    if device.type != "cuda":
        return GpuMachine(INTERPRETER, None, None, None, None, **versions, commit=checkout_commit())
    found = torch.cuda.get_device_properties(device)
    return GpuMachine(
        gpu=torch.cuda.get_device_name(device),
        compute_capability=f"{found.major}.{found.minor}",
        memory_bytes=found.total_memory,
        l2_cache_bytes=found.L2_cache_size,
        cuda=torch.version.cuda,
        **versions,
        commit=checkout_commit(),
    )


def cache_bytes(device: torch.device) -> int:
    """Bytes of the L2 cache, which reads must exceed to come from memory."""
    if device.type != "cuda":
        return INTERPRETED_CACHE_BYTES
    return int(torch.cuda.get_device_properties(device).L2_cache_size)


class Launches:
    """Calls that are timed together, always in the same order."""

    def __init__(self, device: torch.device, calls: Sequence[Callable[[], object]]) -> None:
        """Record them.

        Args:
            device: where they launch.
            calls: they never wait for the device, and read the same memory each time.
        """
        self._device, self._calls = device, calls
        self._graph: torch.cuda.CUDAGraph | None = None
        if device.type != "cuda":
            return
        with torch.cuda.device(device):
            beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            beside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(beside):  # kernels are compiled and libraries make their plans before recording
                self._call_all()
            torch.cuda.current_stream().wait_stream(beside)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._call_all()
            self._begin, self._end = _event(), _event()

    def seconds(self) -> float:
        """Mean seconds of a call, over a run through all."""
        if self._graph is None:
            begin = time.perf_counter()
            self._call_all()
            return max(time.perf_counter() - begin, 1e-9) / len(self._calls)
        with torch.cuda.device(self._device):
            self._graph.replay()  # not timed, so that the timed one waits for the device and not for the host
            self._begin.record()
            self._graph.replay()
            self._end.record()
            self._end.synchronize()
            return float(max(self._begin.elapsed_time(self._end), 1e-6)) / 1e3 / len(self._calls)

    def _call_all(self) -> None:
        for call in self._calls:
            call()


def _event() -> torch.cuda.Event:
    event: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    return event


class GpuReadBandwidth:
    """An array that torch sums piece by piece; clocks change the rate, so it is sampled along with each figure."""

    def __init__(self, device: torch.device, num_bytes: int) -> None:
        """Allocate it: `num_bytes` should be several times the L2 cache."""
        self._device = device
        self._numbers = torch.ones(-(-num_bytes // 4), dtype=torch.float32, device=device)

    def of(self, num_bytes: int, num_launches: int) -> Callable[[], float]:
        """Make a sampler of bytes read a second, by launches that each read the next piece of the array.

        Args:
            num_bytes: of a launch; at most those of the array.
            num_launches: one after the other; together they should read several times the L2 cache.
        """
        count = min(max(num_bytes // 4, 1), len(self._numbers))
        pieces = list(torch.split(self._numbers, count))[: max(len(self._numbers) // count, 1)]  # all of them whole
        out = torch.zeros((), device=self._device)
        reads = [partial(torch.sum, pieces[index % len(pieces)], dim=0, out=out) for index in range(num_launches)]
        launches = Launches(self._device, reads)
        return lambda: 4 * count / launches.seconds()
