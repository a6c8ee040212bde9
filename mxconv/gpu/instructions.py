"""From stored bytes to numbers in registers: instructions that Triton has no name for, and what all kernels share.

The instructions are those of NVIDIA's PTX ISA: `prmt`, `popc`, `fma`. Triton's interpreter has no machine code, so it
gets the same functions in NumPy. int32 stands for 32 bits.

A *lane* is one row of one tile (formats/vnni8.md): eight columns, a 32-bit word of nibbles, byte j of which holds
columns j and j + 4. Kernels hold the lanes of a step as (tiles, rows), rows last, since the lanes of 16 rows adjoin.
Places are declared contiguous by fours and no more: with more rows a thread the compiler packs all weights anew on
their way to the matrix instructions.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import triton
import triton.language as tl

from mxconv.arrays import F32, U32
from mxconv.gpu.launch import IS_INTERPRETED, ROW_TILES, ROWS

_MINUS_ZEROS = tl.constexpr(0x80008000 - (1 << 32))
NEGATIVE_BYTES = tl.constexpr(-0x7F7F7F80)  # 0x80 in each byte


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


@triton.jit
def lanes_above(program, column_tiles):
    """Number of lanes in the rows above a program's, by which its pointers move: int64."""
    return (program * (ROW_TILES * 16)).to(tl.int64) * column_tiles


@triton.jit
def lanes_of(program, first_tile, row_tiles, column_tiles, TILES: tl.constexpr):
    """Places of the lanes of TILES tiles along the columns, counted from the first of the program's rows.

    Returns:
        (TILES, ROWS) int32; rows beyond the matrix repeat its last tile, and are never stored.
    """
    row = tl.arange(0, ROWS)[None, :]
    tile = first_tile + tl.arange(0, TILES)[:, None]
    row_tile = tl.minimum(row // 16, row_tiles - 1 - program * ROW_TILES)
    return tl.max_contiguous((row_tile * column_tiles + tile) * 16 + row % 16, (1, 4))


@triton.jit
def patterns_of_nibbles(words, low_first, low_second, high_first, high_second):
    """Look up 16-bit patterns in a table of eight, and give them the signs of the nibbles.

    Args:
        words: int32, the nibbles of lanes.
        low_first: with the next three, int32 each: `pattern_table`. The sign bits of the patterns are zero.

    Returns:
        Four int32 of two columns each: 0 and 1 of the lane, 2 and 3, 4 and 5, 6 and 7; the first in the low half.
    """
    codes = words & 0x77777777
    low04 = permute_bytes(low_first, low_second, codes)  # columns 0, 4, 1, 5
    low26 = permute_bytes(low_first, low_second, codes >> 16)  # columns 2, 6, 3, 7
    high04 = permute_bytes(high_first, high_second, codes) | _signs(words)
    high26 = permute_bytes(high_first, high_second, codes >> 16) | _signs(words >> 16)
    columns01, columns45 = permute_bytes(low04, high04, 0x6240), permute_bytes(low04, high04, 0x7351)
    columns23, columns67 = permute_bytes(low26, high26, 0x6240), permute_bytes(low26, high26, 0x7351)
    return columns01, columns23, columns45, columns67


@triton.jit
def _signs(words):
    """Bit 7 of each byte: bit 3 of each of the four low nibbles. A byte of 0x80 is negative, so it becomes 0xFF."""
    return (permute_bytes(NEGATIVE_BYTES, NEGATIVE_BYTES, words) << 7) & NEGATIVE_BYTES


@triton.jit
def in_order(columns01, columns23, columns45, columns67, WIDTH: tl.constexpr):
    """Reorder (WIDTH // 8, ROWS) pairs, as `patterns_of_nibbles` returns them, to (ROWS, WIDTH) int16 patterns.

    Rows come in the order of `rows_of_places`.
    """
    pairs = tl.join(tl.join(columns01, columns45), tl.join(columns23, columns67))
    patterns = tl.join(pairs.to(tl.int16), (pairs >> 16).to(tl.int16))
    apart = tl.reshape(patterns, (WIDTH // 8, ROWS // 4, 4, 2, 2, 2))
    return tl.reshape(tl.permute(apart, (2, 1, 0, 3, 4, 5)), (ROWS, WIDTH))


@triton.jit
def weights_of(patterns: tl.tensor, IS_BF16: tl.constexpr, OPERAND: tl.constexpr) -> tl.tensor:
    """Numbers of int16 patterns, exactly, in the operands' type."""
    if IS_BF16 and OPERAND is tl.bfloat16:
        numbers = patterns.to(tl.bfloat16, bitcast=True)
    elif IS_BF16:
        numbers = (patterns.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    else:
        numbers = patterns.to(tl.float16, bitcast=True).to(OPERAND)
    return numbers


@triton.jit
def activations(x, row, is_there, first_column, WIDTH: tl.constexpr, num_columns, OPERAND: tl.constexpr):
    """(WIDTH, MAX_TOKENS) of some rows of `x`, (rows, num_columns); zeros for missing rows and beyond the columns."""
    column = first_column + tl.arange(0, WIDTH)[:, None]
    return tl.load(x + row * num_columns + column, mask=is_there & (column < num_columns), other=0).to(OPERAND)
