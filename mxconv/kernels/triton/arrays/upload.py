"""Arrays on their way to a device."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


def upload(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """A tensor of its own on the device, aligned, with the array's bytes; 16-bit patterns become int16."""
    if array.dtype == np.uint16:
        array = array.view(np.int16)
    tensor = torch.empty(array.shape, dtype=torch.from_numpy(np.empty(0, array.dtype)).dtype, device=device)
    if array.size:
        tensor.copy_(torch.from_numpy(np.require(array, requirements=["C", "A", "W"])))
    return tensor


def as_words(planes: torch.Tensor) -> torch.Tensor:
    """The lanes of (T, C, 64 or 128) uint8 as int32: (T, C, 16) or (T, C, 16, 2)."""
    words = planes.view(torch.int32)
    return words if planes.shape[2] == 64 else words.unflatten(2, (16, 2))
