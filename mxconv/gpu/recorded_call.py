"""A call whose launches are recorded once as a CUDA graph: a replay launches them all at once, and Python none."""

from collections.abc import Callable
from typing import Any

import torch

NUM_WARMUPS = 2  # before a graph is recorded: kernels are compiled, libraries make their plans


class RecordedCall:
    """A call that reads and writes the same memory each time, and whose host code depends on nothing that changes.

    `result` is what it returned when it was recorded: tensors, whose contents a replay makes anew.
    """

    def __init__(self, device: torch.device, call: Callable[[], Any], pool: Any = None) -> None:
        """Call it twice beside other work, then record it.

        Args:
            device: a GPU, where it launches.
            call: what is recorded.
            pool: a `torch.cuda.graph_pool_handle()`, for graphs that share memory: a replay of one may overwrite the
                results of another. None for memory of its own.

        Raises:
            RuntimeError: the call waits for the device, which a graph cannot; or there is too little memory.
        """
        with torch.cuda.device(device):
            beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            beside.wait_stream(torch.cuda.current_stream())
            try:
                with torch.cuda.stream(beside):
                    for _ in range(NUM_WARMUPS - 1):
                        call()
                    _without_waiting(call)  # an error in here, and not in a graph that is half recorded
            finally:
                torch.cuda.current_stream().wait_stream(beside)
                torch.cuda.synchronize()
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, pool=pool):
                self.result = call()

    def replay(self) -> None:
        """Launch it again, on the current stream of the current device."""
        self._graph.replay()


def _without_waiting(call: Callable[[], Any]) -> None:
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        call()
    finally:
        torch.cuda.set_sync_debug_mode(mode)
