"""Where the kernels can run, and whether there is room: an NVIDIA GPU with BF16 matrix instructions.

A CPU counts as a device too, to try things: torch decodes the weights there at every product.
"""

from importlib.util import find_spec

import torch

from mxconv.errors import ModelError, install_line

REQUIRED_CAPABILITY = (8, 0)  # Ampere: the first with BF16 matrix instructions
RESERVE_BYTES = 256 << 20  # for the kernels' scratch and what torch keeps for itself


def checked_device(device: str | torch.device) -> torch.device:
    """The device, if it is a CPU or the kernels run on it.

    Args:
        device: "cuda", "cuda:1"; or "cpu", which is slow.

    Raises:
        ModelError: Triton is missing, there is no such GPU, or it is too old.
    """
    found = torch.device(device)
    if find_spec("triton") is None:
        raise ModelError(
            f"device {found}: Triton is not installed; the kernels for GPUs are written in it. "
            f"It wants Linux and a torch with CUDA. {install_line('gpu')}"
        )
    if found.type == "cpu":
        return found
    if found.type != "cuda" or torch.version.hip is not None:
        raise ModelError(f"device {found}: not an NVIDIA GPU, which the kernels require. Use device='cuda'.")
    if not torch.cuda.is_available():
        raise ModelError(
            f"device {found}: torch {torch.__version__} finds no GPU; one with its driver and a torch built with CUDA "
            "are required. python -c 'import torch; torch.zeros(1).cuda()' says what is missing."
        )
    index = torch.cuda.current_device() if found.index is None else found.index
    if index >= torch.cuda.device_count():
        raise ModelError(f"device {found}: there are {torch.cuda.device_count()} GPUs; count from cuda:0.")
    capability = torch.cuda.get_device_capability(index)
    if capability < REQUIRED_CAPABILITY:
        needed = ".".join(map(str, REQUIRED_CAPABILITY))
        raise ModelError(
            f"{torch.cuda.get_device_name(index)}: compute capability {capability[0]}.{capability[1]}; {needed} or "
            "later is required (Ampere, for BF16). Use a newer GPU, or mxconv's kernels on the CPU."
        )
    return torch.device("cuda", index)


def free_bytes(device: torch.device) -> int | None:
    """Free memory of a GPU, what torch holds and does not use included; None of a CPU."""
    if device.type != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def require_room(device: torch.device, num_bytes: int, subject: str, instead: str) -> None:
    """Refuse weights that do not fit.

    Args:
        device: the destination.
        num_bytes: of all weights.
        subject: their name in messages.
        instead: a sentence that says what would fit, or what to do.

    Raises:
        ModelError: less memory is free.
    """
    free = free_bytes(device)
    if free is not None and num_bytes + RESERVE_BYTES > free:
        raise ModelError(
            f"{subject}: {num_bytes / 1e9:.2f} GB of weights and {RESERVE_BYTES / 1e9:.2f} GB to work in are needed on "
            f"{device}; {free / 1e9:.2f} GB are free. {instead}"
        )
