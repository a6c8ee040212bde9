"""Which GPU measured: what every table of its figures begins with."""

from dataclasses import dataclass

import torch
import triton

from mxconv.bench.checkout import checkout_commit
from mxconv.system.processor import cpu_name

INTERPRETER = "no GPU: Triton's interpreter"
INTERPRETED_CACHE_BYTES = 1 << 10  # of a cache that is none, so that there are two copies


@dataclass(frozen=True)
class GpuMachine:
    """A GPU, and what launched on it."""

    gpu: str
    compute_capability: str | None  # None in the interpreter, as in the next three
    memory_bytes: int | None
    l2_cache_bytes: int | None
    cuda: str | None  # that torch was built with
    torch: str
    triton: str
    cpu: str  # of the host
    commit: str | None  # of the checkout that mxconv runs from, "+" behind it where files differ; None elsewhere

    @property
    def described(self) -> str:
        """In a few words, as pictures have it."""
        return self.gpu


def gpu_machine(device: torch.device) -> GpuMachine:
    """That of a device."""
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
    """The L2 cache: what reads must exceed to come from memory."""
    if device.type != "cuda":
        return INTERPRETED_CACHE_BYTES
    return int(torch.cuda.get_device_properties(device).L2_cache_size)
