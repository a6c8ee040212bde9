"""Instructions of NVIDIA's GPUs that Triton has no name for, each with the same function in arithmetic.

The arithmetic is what Triton's interpreter runs, since it has no machine code. Meaning: PTX ISA, `prmt`, `popc`, `fma`.
"""

import triton
import triton.language as tl

from mxconv.kernels.triton.launch import IS_INTERPRETED

_INTERPRETED = tl.constexpr(IS_INTERPRETED)
_MINUS_ZEROS = tl.constexpr(0x80008000 - (1 << 32))


@triton.jit
def permute_bytes(a, b, selectors):
    """Four of eight bytes, picked by the four low nibbles of `selectors`: a table look-up without memory.

    Args:
        a: int32, bytes 0 to 3.
        b: int32, bytes 4 to 7.
        selectors: int32; bits 2..0 of a nibble say which byte, bit 3 that all eight bits become its sign.

    Returns:
        int32: byte i as nibble i says.
    """
    if not _INTERPRETED:
        return tl.inline_asm_elementwise(
            "prmt.b32 $0, $1, $2, $3;", "=r,r,r,r", [a, b, selectors], dtype=tl.int32, is_pure=True, pack=1
        )
    picked = a & 0 | b & 0 | selectors & 0
    for place in tl.static_range(4):
        selector = selectors >> (4 * place)
        byte = (tl.where((selector & 4) != 0, b, a) >> (8 * (selector & 3))) & 255
        byte = tl.where((selector & 8) != 0, (byte >> 7) * 255, byte)
        picked |= byte << (8 * place)
    return picked


@triton.jit
def count_ones(bits):
    """How many of the 32 bits of int32 are ones."""
    if not _INTERPRETED:
        return tl.inline_asm_elementwise("popc.b32 $0, $1;", "=r,r", [bits], dtype=tl.int32, is_pure=True, pack=1)
    ones = bits & 0
    for place in tl.static_range(32):
        ones += (bits >> place) & 1
    return ones


@triton.jit
def multiply_bf16_pairs(a, b):
    """Two products of BF16 patterns in the halves of int32, rounded to nearest even; subnormals are numbers."""
    if not _INTERPRETED:
        return tl.inline_asm_elementwise(
            "fma.rn.bf16x2 $0, $1, $2, $3;", "=r,r,r,r", [a, b, _MINUS_ZEROS], dtype=tl.int32, is_pure=True, pack=1
        )
    low = _bf16(a << 16) * _bf16(b << 16)
    high = _bf16(a & -65536) * _bf16(b & -65536)
    return _rounded(low) | (_rounded(high) << 16)


@triton.jit
def _bf16(patterns):
    return patterns.to(tl.float32, bitcast=True)


@triton.jit
def _rounded(numbers):
    """In integers: the interpreter's own conversion makes zeros of subnormals."""
    bits = numbers.to(tl.int32, bitcast=True)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return tl.where(numbers != numbers, 0x7FC0, rounded) & 0xFFFF
