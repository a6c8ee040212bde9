"""Machine instructions, or what stands in for them in the interpreter, against what PTX says of them."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="mxconv[gpu] is not installed: torch is missing")
pytest.importorskip("triton", reason="mxconv[gpu] is not installed: pip install triton")

import ml_dtypes
import torch
import triton
import triton.language as tl
from gpu_weights import DEVICE

from mxconv.gpu.instructions import count_ones, multiply_bf16_pairs, permute_bytes

BLOCK = tl.constexpr(1024)


@triton.jit
def _permute(a, b, selectors, out):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + place, permute_bytes(tl.load(a + place), tl.load(b + place), tl.load(selectors + place)))


@triton.jit
def _count(bits, out):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + place, count_ones(tl.load(bits + place)))


@triton.jit
def _multiply(a, b, out):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + place, multiply_bf16_pairs(tl.load(a + place), tl.load(b + place)))


def words(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1 << 32, count, dtype=np.uint32)


def run(kernel: object, *arrays: np.ndarray) -> np.ndarray:
    tensors = [torch.from_numpy(array.view(np.int32)).to(DEVICE) for array in arrays]
    out = torch.empty_like(tensors[0])
    kernel[len(out) // BLOCK.value,](*tensors, out)  # type: ignore[index]  # a kernel is launched on a grid
    return out.cpu().numpy().view(np.uint32)


def test_bytes_are_picked_by_every_selector() -> None:
    """PTX ISA, prmt: bits 2..0 of a nibble pick one of eight bytes, b's after a's; bit 3 repeats its sign."""
    selectors = np.arange(1 << 16, dtype=np.uint32) | words(1 << 16, 0) << np.uint32(16)  # the upper half says nothing
    a, b = words(1 << 16, 1), words(1 << 16, 2)
    eight = np.concatenate([a.view(np.uint8).reshape(-1, 4), b.view(np.uint8).reshape(-1, 4)], axis=1)
    nibbles = selectors[:, None] >> np.arange(0, 16, 4, dtype=np.uint32) & 15
    picked = np.take_along_axis(eight, (nibbles & 7).astype(np.int64), axis=1)
    signs = (picked.view(np.int8) >> 7).view(np.uint8)
    expected = np.where(nibbles & 8, signs, picked).astype(np.uint8).view(np.uint32)[:, 0]
    assert np.array_equal(run(_permute, a, b, selectors), expected)


def test_ones_are_counted() -> None:
    bits = np.concatenate([words(1022, 3), np.array([0, 0xFFFFFFFF], np.uint32)])
    assert np.array_equal(run(_count, bits), np.bitwise_count(bits))


def test_pairs_of_bf16_are_multiplied_and_rounded_to_nearest_even() -> None:
    """All patterns are there. A product of two 8-bit significands is rounded by ml-dtypes."""
    a, b = words(1 << 16, 4), words(1 << 16, 5)
    a[: 1 << 15] = np.arange(1 << 16, dtype=np.uint16).view(np.uint32)
    numbers = [word.view(ml_dtypes.bfloat16).astype(np.float32) for word in (a, b)]
    with np.errstate(all="ignore"):
        product = (numbers[0].astype(np.float64) * numbers[1]).astype(np.float32).astype(ml_dtypes.bfloat16)
        found = run(_multiply, a, b).view(ml_dtypes.bfloat16)
    is_nan = np.isnan(product.astype(np.float32))
    assert np.array_equal(np.isnan(found.astype(np.float32)), is_nan)
    assert np.array_equal(found[~is_nan].view(np.uint16), product[~is_nan].view(np.uint16))
