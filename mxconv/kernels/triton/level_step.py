"""The levels of a step of a 4-bit matrix, and the scales of its rows: what both products and the look-up share."""

import triton
import triton.language as tl

from mxconv.kernels.triton.launch import ROW_TILES, ROWS


@triton.jit
def level_step(codes, levels, program, first_tile, row_tiles, column_tiles, WIDTH: tl.constexpr):
    """Levels of a program's rows and of WIDTH columns.

    Args:
        codes: (T, C, 16) int32, the nibbles of each lane.
        levels: (16,) by nibble.
        program: which 64 rows.
        first_tile: of the step, along the columns.
        row_tiles: T.
        column_tiles: C.

    Returns:
        (ROWS, WIDTH) of the levels' type; those of nibble 0 beyond the matrix.
    """
    row = tl.arange(0, ROWS)[None, :]  # last, since the lanes of 16 rows lie side by side
    tile = first_tile + tl.arange(0, WIDTH // 8)[:, None]
    is_there = (program * ROW_TILES + row // 16 < row_tiles) & (tile < column_tiles)
    above = (program * ROW_TILES).to(tl.int64) * column_tiles
    lane = (row // 16 * column_tiles + tile) * 16 + row % 16
    words = tl.load(codes + above * 16 + lane, mask=is_there, other=0)
    columns_0_4 = tl.join(_level(words, levels, 0), _level(words, levels, 4))
    columns_1_5 = tl.join(_level(words, levels, 8), _level(words, levels, 12))
    columns_2_6 = tl.join(_level(words, levels, 16), _level(words, levels, 20))
    columns_3_7 = tl.join(_level(words, levels, 24), _level(words, levels, 28))
    even = tl.join(columns_0_4, columns_2_6)
    odd = tl.join(columns_1_5, columns_3_7)
    return tl.reshape(tl.permute(tl.join(even, odd), (1, 0, 2, 3, 4)), (ROWS, WIDTH))


@triton.jit
def _level(words, levels, SHIFT: tl.constexpr):
    return tl.load(levels + ((words >> SHIFT) & 15))


@triton.jit
def row_scales(scales, program, block, row_tiles, num_blocks, IS_E8M0: tl.constexpr):
    """(ROWS, 1) float32: the scales of a block of columns.

    Args:
        scales: (T, blocks, 16), uint8 E8M0 or int16 patterns of BF16. Those of E8M0 are halved: its levels are doubled.
    """
    row = tl.arange(0, ROWS)[:, None]
    row_tile = program * ROW_TILES + row // 16
    place = (row_tile.to(tl.int64) * num_blocks + block) * 16 + row % 16
    stored = tl.load(scales + place, mask=row_tile < row_tiles, other=0).to(tl.int32)
    if not IS_E8M0:
        return (stored << 16).to(tl.float32, bitcast=True)
    # 2^(byte - 128): below 2^-126 a subnormal, of one bit
    bits = tl.where(stored > 1, (stored - 1) << 23, 0x200000 << tl.minimum(stored, 1))
    return tl.where(stored == 255, 0x7FC00000, bits).to(tl.float32, bitcast=True)
