"""A step of a 4-bit matrix as BF16 patterns."""

import triton
import triton.language as tl

from mxconv.kernels.triton.launch import ROW_TILES, ROWS, STEP, STEP_TILES
from mxconv.kernels.triton.steps.instructions import multiply_bf16_pairs
from mxconv.kernels.triton.steps.lanes import in_order, lanes_above, lanes_of, patterns_of_nibbles


@triton.jit
def four_bit_step(
    codes, table, scales, program, first_tile, row_tiles, column_tiles, num_blocks, IS_E8M0: tl.constexpr
):  # fmt: skip
    """Patterns of a program's rows and of 16 tiles along the columns.

    Args:
        codes: (T, C, 16) int32, the nibbles of each lane.
        table: (ROWS, 4) int32 as in `FourBitArrays.levels`.
        scales: (T, blocks, 16), uint8 E8M0 of 32 columns each.
        program: which 64 rows.
        first_tile: of the step, along the columns.
        row_tiles: T.
        column_tiles: C.
        num_blocks: of `scales`.

    Returns:
        (ROWS, STEP) int16: with IS_E8M0 levels times scale, which BF16 holds; else levels, `row_scales` has the rest.
    """
    place = lanes_of(program, first_tile, row_tiles, column_tiles, STEP_TILES)
    tile = first_tile + tl.arange(0, STEP_TILES)[:, None]
    words = tl.load(codes + lanes_above(program, column_tiles) + place, mask=tile < column_tiles, other=0)
    entry = table + tl.arange(0, ROWS)[None, :] * 4
    pair0, pair1, pair2, pair3 = patterns_of_nibbles(
        words, tl.load(entry), tl.load(entry + 1), tl.load(entry + 2), tl.load(entry + 3)
    )
    if IS_E8M0:
        places = _scale_places(program, first_tile, row_tiles, num_blocks)
        stored = tl.load(scales + lanes_above(program, num_blocks) + places, mask=tile < column_tiles, other=0)
        scale = _pattern_of_e8m0(stored) * 0x10001
        pair0, pair1 = multiply_bf16_pairs(pair0, scale), multiply_bf16_pairs(pair1, scale)
        pair2, pair3 = multiply_bf16_pairs(pair2, scale), multiply_bf16_pairs(pair3, scale)
    return in_order(pair0, pair1, pair2, pair3, STEP)


@triton.jit
def _scale_places(program, first_tile, row_tiles, num_blocks):
    """(STEP_TILES, ROWS) int32: where the scales of lanes lie, from those of the program's rows on."""
    row = tl.arange(0, ROWS)[None, :]
    block = (first_tile + tl.arange(0, STEP_TILES)[:, None]) // 4
    row_tile = tl.minimum(row // 16, row_tiles - 1 - program * ROW_TILES)
    return tl.max_contiguous((row_tile * num_blocks + block) * 16 + row % 16, (1, 4))


@triton.jit
def _pattern_of_e8m0(stored):
    """BF16 patterns in int32: 2^-127 is a subnormal, 255 a NaN."""
    stored = stored.to(tl.int32)
    return (stored << 7) | tl.where(((stored + 1) & 255) < 2, 0x40, 0)
