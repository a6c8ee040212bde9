"""From stored bytes to numbers in registers: what the kernels of all formats have in common.

A *lane* is one row of one tile (formats/vnni8.md): eight columns, a 32-bit word of nibbles, byte j of which holds
columns j and j + 4. Kernels hold the lanes of a step as (tiles, rows), rows last, since the lanes of 16 rows adjoin.
Places are declared contiguous by fours and no more: with more rows a thread the compiler packs all weights anew on
their way to the matrix instructions.
"""

import triton
import triton.language as tl

from mxconv.gpu.instructions import permute_bytes
from mxconv.gpu.launch import ROW_TILES, ROWS

NEGATIVE_BYTES = tl.constexpr(-0x7F7F7F80)  # 0x80 in each byte


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
