"""A block of a 4-bit matrix as int8 levels."""

import triton
import triton.language as tl

from mxconv.kernels.triton.launch import ROWS
from mxconv.kernels.triton.products.int8_activations import BLOCK
from mxconv.kernels.triton.steps.instructions import permute_bytes
from mxconv.kernels.triton.steps.lanes import lanes_above, lanes_of

_TILES = tl.constexpr(BLOCK.value // 8)
_NEGATIVE = tl.constexpr(-0x7F7F7F80)  # 0x80 in each byte


@triton.jit
def int8_step(codes, table, program, first_tile, row_tiles, column_tiles):
    """Levels of a program's rows and of four tiles along the columns.

    Args:
        codes: (T, C, 16) int32, the nibbles of each lane; C is a multiple of four.
        table: (4,) int32 as in `FourBitArrays.int8_levels`.
        program: which 64 rows.
        first_tile: of the block, along the columns.
        row_tiles: T.
        column_tiles: C.

    Returns:
        (ROWS, BLOCK) int8.
    """
    place = lanes_of(program, first_tile, row_tiles, column_tiles, _TILES)
    words = tl.load(codes + lanes_above(program, column_tiles) + place)
    columns04, columns26 = _levels(words, table), _levels(words >> 16, table)  # 0, 4, 1, 5 and 2, 6, 3, 7
    front, behind = permute_bytes(columns04, columns26, 0x6420), permute_bytes(columns04, columns26, 0x7531)
    halves = tl.join(front, behind)
    even = tl.join(halves.to(tl.int8), (halves >> 16).to(tl.int8))
    odd = tl.join((halves >> 8).to(tl.int8), (halves >> 24).to(tl.int8))
    return tl.reshape(tl.permute(tl.join(even, odd), (1, 0, 2, 3, 4)), (ROWS, BLOCK))


@triton.jit
def _levels(words, table):
    """Four bytes of a table of sixteen, by the four low nibbles."""
    codes = words & 0x7777
    positive = permute_bytes(tl.load(table), tl.load(table + 1), codes)
    negative = permute_bytes(tl.load(table + 2), tl.load(table + 3), codes)
    signs = permute_bytes(_NEGATIVE, _NEGATIVE, words)  # bytes of 0xFF, or 0x80 where there is no sign
    is_negative = (signs & 0x01010101) * 255
    return (positive & ~is_negative) | (negative & is_negative)
