"""Lanes: one row of one tile, eight columns, a 32-bit word of nibbles. Formats: formats/vnni8.md.

Kernels hold the lanes of a step as (tiles, rows), rows last, since those of 16 rows lie side by side. Byte j of a word
holds columns j and j + 4. Places are said to be contiguous by fours and no more: with more rows a thread the compiler
packs all weights anew on their way to the matrix instructions.
"""

import triton
import triton.language as tl

from mxconv.kernels.triton.launch import ROW_TILES, ROWS
from mxconv.kernels.triton.steps.instructions import permute_bytes

_SIGNS = tl.constexpr(-0x7F7F7F80)  # 0x80 in each byte


@triton.jit
def lanes_above(program, column_tiles):
    """int64: the lanes of the rows above a program's, by which its pointers are moved."""
    return (program * (ROW_TILES * 16)).to(tl.int64) * column_tiles


@triton.jit
def lanes_of(program, first_tile, row_tiles, column_tiles, TILES: tl.constexpr):
    """Where the lanes of TILES tiles along the columns lie, from the first of the program's rows on.

    Returns:
        (TILES, ROWS) int32; rows beyond the matrix are those of its last tile again, and nobody stores them.
    """
    row = tl.arange(0, ROWS)[None, :]
    tile = first_tile + tl.arange(0, TILES)[:, None]
    row_tile = tl.minimum(row // 16, row_tiles - 1 - program * ROW_TILES)
    return tl.max_contiguous((row_tile * column_tiles + tile) * 16 + row % 16, (1, 4))


@triton.jit
def patterns_of_nibbles(words, low_front, low_behind, high_front, high_behind):
    """16-bit patterns by a table of eight, with the signs of the nibbles.

    Args:
        words: int32, the nibbles of lanes.
        low_front: int32, the low bytes of the patterns of codes 0 to 3.
        low_behind: of codes 4 to 7.
        high_front: the high bytes of codes 0 to 3; bit 7 is zero.
        high_behind: of codes 4 to 7.

    Returns:
        Four int32 of two columns each: 0 and 1 of the lane, 2 and 3, 4 and 5, 6 and 7; the first in the low half.
    """
    codes = words & 0x77777777
    low04 = permute_bytes(low_front, low_behind, codes)  # columns 0, 4, 1, 5
    low26 = permute_bytes(low_front, low_behind, codes >> 16)  # columns 2, 6, 3, 7
    high04 = permute_bytes(high_front, high_behind, codes) | _signs(words)
    high26 = permute_bytes(high_front, high_behind, codes >> 16) | _signs(words >> 16)
    columns01, columns45 = permute_bytes(low04, high04, 0x6240), permute_bytes(low04, high04, 0x7351)
    columns23, columns67 = permute_bytes(low26, high26, 0x6240), permute_bytes(low26, high26, 0x7351)
    return columns01, columns23, columns45, columns67


@triton.jit
def _signs(words):
    """Bit 7 of each byte: bit 3 of each of the four low nibbles."""
    return (permute_bytes(_SIGNS, _SIGNS, words) << 7) & _SIGNS  # a byte of 0x80 is negative, so it becomes 0xFF


@triton.jit
def in_order(columns01, columns23, columns45, columns67, WIDTH: tl.constexpr):
    """(ROWS, WIDTH) int16 patterns of (WIDTH // 8, ROWS) pairs, as `patterns_of_nibbles` gives them."""
    pairs = tl.join(tl.join(columns01, columns45), tl.join(columns23, columns67))
    patterns = tl.join(pairs.to(tl.int16), (pairs >> 16).to(tl.int16))
    return tl.reshape(tl.permute(patterns, (1, 0, 2, 3, 4)), (ROWS, WIDTH))
