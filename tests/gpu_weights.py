"""Matrices for the Triton kernels, with what the NumPy codecs say of them, and the device that the kernels run on."""

import os
from typing import Any

import numpy as np
import torch

from mxconv.codecs.bsfp.histogram import PatternHistogram, row_shifts_of
from mxconv.codecs.bsfp.packing import encode_bsfp, escape_offsets
from mxconv.codecs.bsfp.table import SegmentTable
from mxconv.codecs.float16 import FloatFormat
from mxconv.codecs.mxfp4 import dequantize_mxfp4, quantize_mxfp4
from mxconv.codecs.vnni8 import TILE_ROWS, pack_nibbles, pack_scales, pad
from mxconv.gpu.weight import Activations, BsfpWeight, FourBitWeight, uploaded_weight
from mxconv.kernels.encoders import fit_table
from mxconv.package.stored_matrix import StoredBsfp, StoredMxfp4

DEVICE = torch.device("cuda" if os.environ["TRITON_INTERPRET"] == "0" else "cpu")
EPSILON = np.finfo(np.float32).eps

Shape = tuple[int, int]


def gaussian(shape: Shape, seed: int = 0) -> np.ndarray:
    """Rows whose scales differ by octaves, float32."""
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) * 2.0 ** rng.integers(-6, 3, (shape[0], 1))).astype(np.float32)


def stored_bsfp(
    patterns: np.ndarray,
    float_format: FloatFormat,
    row_shifts: bool = False,
    residual_bits: int | None = None,
    table: SegmentTable | None = None,
) -> StoredBsfp:
    """Patterns in the table that fits them, or in a given one."""
    if table is None:
        histogram = PatternHistogram(float_format)
        histogram.add(patterns)
        table = fit_table(histogram, residual_bits, row_shifts).table
    packed = encode_bsfp(patterns, table, row_shifts_of(patterns, float_format) if row_shifts else None)
    return StoredBsfp(patterns.shape, table, packed, escape_offsets(packed), 1.0)


def bsfp_weight(stored: StoredBsfp, **options: Any) -> BsfpWeight:
    """The matrix on the device."""
    weight = uploaded_weight(stored, DEVICE, **options)
    assert isinstance(weight, BsfpWeight)
    return weight


def mxfp4_weight(values: np.ndarray, activations: Activations = "bf16") -> tuple[FourBitWeight, np.ndarray]:
    """Values in MXFP4 on the device, and what they are there."""
    stored, decoded = stored_mxfp4(values)
    weight = uploaded_weight(stored, DEVICE, activations)
    assert isinstance(weight, FourBitWeight)
    return weight, decoded


def stored_mxfp4(values: np.ndarray) -> tuple[StoredMxfp4, np.ndarray]:
    """Values in MXFP4, and what they are there."""
    codes, scales = quantize_mxfp4(values)
    decoded = dequantize_mxfp4(codes, scales)[:, : values.shape[1]]
    packed = pack_nibbles(pad(codes, TILE_ROWS, 1)), pack_scales(pad(scales, TILE_ROWS, 1))
    return StoredMxfp4(values.shape, *packed), decoded


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
