"""Whether a device has room for weights, asked before they are moved."""

import torch

from mxconv.errors import ModelError

RESERVE_BYTES = 256 << 20  # for the kernels' scratch and what torch keeps for itself


def free_bytes(device: torch.device) -> int | None:
    """Of a GPU: what other processes leave, and what torch holds and does not use; None where nobody counts."""
    if device.type != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def require_room(device: torch.device, num_bytes: int, subject: str, instead: str) -> None:
    """Refuse weights that do not fit.

    Args:
        device: where they are to go.
        num_bytes: of all of them.
        subject: what messages call them.
        instead: a sentence: what would fit, or what to do.

    Raises:
        ModelError: the device has not so much memory free.
    """
    free = free_bytes(device)
    if free is not None and num_bytes + RESERVE_BYTES > free:
        raise ModelError(
            f"{subject}: {num_bytes / 1e9:.2f} GB of weights and {RESERVE_BYTES / 1e9:.2f} GB to work in are needed on "
            f"{device}; {free / 1e9:.2f} GB are free. {instead}"
        )
