"""Arrays of a package on a device: copied, joined for the experts of a stack, and tables for byte permutation."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from mxconv.arrays import I32, U16

Parts = Mapping[str, torch.Tensor]  # arrays of a matrix on a device, by name
Arrays = TypeVar("Arrays", bound=Any)  # a dataclass of tensors


def upload(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """Copy an array to aligned memory of its own on the device; 16-bit patterns become int16."""
    if array.dtype == np.uint16:
        array = array.view(np.int16)
    tensor = torch.empty(array.shape, dtype=torch.from_numpy(np.empty(0, array.dtype)).dtype, device=device)
    if array.size:
        tensor.copy_(torch.from_numpy(np.require(array, requirements=["C", "A", "W"])))
    return tensor


def stacked(experts: Sequence[Arrays]) -> Arrays:
    """Join the tensors of experts by their names, which all or none must have; all else is the first's."""
    first, joint = experts[0], {}
    for name, part in vars(first).items():
        parts = [getattr(each, name) for each in experts]
        assert len({each is None for each in parts}) == 1, f"{name}: of some experts alone"
        if isinstance(part, torch.Tensor):
            joint[name] = torch.cat(parts)
    found: Arrays = replace(first, **joint)
    return found


def expert_of(stack: Arrays, number: int, num_experts: int) -> Arrays:
    """View the tensors of one expert of a stack."""
    tensors = {name: part for name, part in vars(stack).items() if isinstance(part, torch.Tensor)}
    found: Arrays = replace(stack, **{name: part.chunk(num_experts)[number] for name, part in tensors.items()})
    return found


def pattern_table(patterns: U16) -> I32:
    """Bytes of a table of eight 16-bit patterns, as kernels permute them.

    Args:
        patterns: (..., 8) by code, sign bits zero.

    Returns:
        (..., 4) int32: the low bytes of codes 0 to 3, of 4 to 7, then their high bytes.
    """
    planes = np.stack([patterns & 0xFF, patterns >> 8], axis=-2).astype(np.uint8)
    words: I32 = np.ascontiguousarray(planes).view("<i4").reshape(*patterns.shape[:-1], 4)
    return words
