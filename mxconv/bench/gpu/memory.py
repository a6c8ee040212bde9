"""What a model takes on a device: what torch holds there beyond what it held before."""

import gc

import torch


class Memory:
    """Counts from what is held now. In the interpreter nothing is counted."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._is_gpu = device, device.type == "cuda"
        self._before = torch.cuda.memory_allocated(device) if self._is_gpu else 0

    def begin(self) -> None:
        """Peaks count from here."""
        if self._is_gpu:
            torch.cuda.reset_peak_memory_stats(self._device)

    def peak_bytes(self) -> int | None:
        """The most that was held since `begin`."""
        return torch.cuda.max_memory_allocated(self._device) - self._before if self._is_gpu else None

    def wait(self) -> None:
        """Until the device has done all that it was asked for."""
        if self._is_gpu:
            torch.cuda.synchronize(self._device)

    def release(self) -> None:
        """Give back what nothing refers to."""
        gc.collect()
        if self._is_gpu:
            torch.cuda.empty_cache()
