"""Matrices on a device, with what the NumPy codecs say of them; MXCONV_TEST_GPU=1 makes it a GPU."""

import os
from typing import Any

import numpy as np
import torch
from stored_matrices import stored_mxfp4

from mxconv.gpu.weight import BsfpWeight, FourBitWeight, uploaded_weight
from mxconv.package.stored import StoredBsfp

DEVICE = torch.device("cuda" if os.environ.get("MXCONV_TEST_GPU") else "cpu")
EPSILON = np.finfo(np.float32).eps


def bsfp_weight(stored: StoredBsfp, **options: Any) -> BsfpWeight:
    """The matrix on the device."""
    weight = uploaded_weight(stored, DEVICE, **options)
    assert isinstance(weight, BsfpWeight)
    return weight


def mxfp4_weight(values: np.ndarray) -> tuple[FourBitWeight, np.ndarray]:
    """Values in MXFP4 on the device, and what they are there."""
    stored, decoded = stored_mxfp4(values)
    weight = uploaded_weight(stored, DEVICE)
    assert isinstance(weight, FourBitWeight)
    return weight, decoded


def bits(tensor: torch.Tensor) -> np.ndarray:
    """16-bit patterns of a 16-bit tensor."""
    return tensor.cpu().view(torch.int16).numpy().view(np.uint16)


def tokens(num_tokens: int, num_columns: int, seed: int = 1) -> torch.Tensor:
    """Activations that BF16 and F16 hold both, on the device."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randint(-64, 65, (num_tokens, num_columns), generator=generator) / 16).to(DEVICE)


def assert_product(found: torch.Tensor, x: torch.Tensor, weights: np.ndarray) -> None:
    """Equal to the exact product within what sums in float32 explain."""
    exact, of = x.cpu().double().numpy(), weights.astype(np.float64)
    rounding = (x.shape[1] + 4) * EPSILON * (np.abs(exact) @ np.abs(of).T)
    assert found.dtype == torch.float32
    assert found.shape == (len(x), len(weights))
    assert (np.abs(found.cpu().numpy() - exact @ of.T) <= rounding).all()
