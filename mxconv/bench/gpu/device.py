"""Where to measure: a GPU, or Triton's interpreter where the environment asks for it."""

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING

from mxconv.errors import MxconvError

if TYPE_CHECKING:
    import torch


def bench_device(name: str) -> "torch.device":
    """The device, if the kernels run on it.

    Args:
        name: "cuda" or "cuda:1"; with TRITON_INTERPRET=1 the CPU is taken in its place.

    Raises:
        MxconvError: torch or Triton is missing, or there is no such GPU.
    """
    if find_spec("torch") is None:
        raise MxconvError(
            f"device {name}: torch is not installed; a torch with CUDA is required. Install it: pip install torch, "
            "then pip install 'mxconv[gpu]', on Linux."
        )
    from mxconv.gpu.device import checked_device

    return checked_device("cpu" if os.environ.get("TRITON_INTERPRET") == "1" else name)
