"""Instructions of NVIDIA's GPUs that Triton has no name for (PTX ISA: `prmt`, `popc`, `fma`).

Triton's interpreter has no machine code, so it gets the same functions in NumPy. int32 stands for 32 bits.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import triton
import triton.language as tl

from mxconv.arrays import F32, U32
from mxconv.gpu.launch import IS_INTERPRETED

_MINUS_ZEROS = tl.constexpr(0x80008000 - (1 << 32))


@triton.jit
def permute_bytes(a, b, selectors):
    """Pick four of eight bytes by the four low nibbles of `selectors`: a table look-up without memory.

    Args:
        a: int32, bytes 0 to 3.
        b: int32, bytes 4 to 7.
        selectors: int32; bits 2..0 of a nibble choose the byte, bit 3 replaces all its bits by its sign.

    Returns:
        int32: byte i as nibble i says.
    """
    return tl.inline_asm_elementwise(
        "prmt.b32 $0, $1, $2, $3;", "=r,r,r,r", [a, b, selectors], dtype=tl.int32, is_pure=True, pack=1
    )


@triton.jit
def count_ones(bits):
    """Count the ones among the 32 bits of int32."""
    return tl.inline_asm_elementwise("popc.b32 $0, $1;", "=r,r", [bits], dtype=tl.int32, is_pure=True, pack=1)


@triton.jit
def multiply_bf16_pairs(a, b):
    """Multiply BF16 patterns in both halves of int32, rounding to nearest even; subnormals count."""
    return tl.inline_asm_elementwise(
        "fma.rn.bf16x2 $0, $1, $2, $3;", "=r,r,r,r", [a, b, _MINUS_ZEROS], dtype=tl.int32, is_pure=True, pack=1
    )


def _permute_bytes(a: U32, b: U32, selectors: U32) -> U32:
    eight = a.astype(np.uint64) | b.astype(np.uint64) << np.uint64(32)
    picked = np.zeros(eight.shape, np.uint32)
    for place in range(0, 32, 8):
        selector = selectors >> (place // 2)
        byte = (eight >> (8 * (selector & 7)).astype(np.uint64)).astype(np.uint32) & 255
        picked |= np.where(selector & 8, (byte >> 7) * 255, byte).astype(np.uint32) << place
    return picked


def _count_ones(bits: U32) -> U32:
    return np.bitwise_count(bits).astype(np.uint32)


def _multiply_bf16_pairs(a: U32, b: U32) -> U32:
    def rounded(numbers: F32) -> U32:
        bits = numbers.view(np.uint32)
        return np.where(np.isnan(numbers), 0x7FC0, (bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint32)

    with np.errstate(all="ignore"):
        low = (a << 16).view(np.float32) * (b << 16).view(np.float32)
        high = (a & 0xFFFF0000).view(np.float32) * (b & 0xFFFF0000).view(np.float32)
    return rounded(low) | rounded(high) << np.uint32(16)


def _in_interpreter(function: Callable[..., U32]) -> Callable[..., Any]:
    """The interpreter's version of a function of arrays: of its tensors, or of integers."""
    from triton.runtime.interpreter import TensorHandle

    @functools.wraps(function)
    def call(*operands: Any) -> Any:
        arrays = [
            each.handle.data if isinstance(each, tl.tensor) else np.array(int(each) & 0xFFFFFFFF, np.uint32)
            for each in operands
        ]
        words = (np.ascontiguousarray(each).view(np.uint32) for each in np.broadcast_arrays(*arrays))
        found = function(*words).view(np.int32)
        return tl.tensor(TensorHandle(found, tl.int32), tl.block_type(tl.int32, list(found.shape)))

    return call


if IS_INTERPRETED:
    permute_bytes = _in_interpreter(_permute_bytes)
    count_ones = _in_interpreter(_count_ones)
    multiply_bf16_pairs = _in_interpreter(_multiply_bf16_pairs)
