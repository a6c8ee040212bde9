"""The exact 16-bit patterns of a step of BSFP, in registers: segment start plus residual, then the escapes patched.

Normative text: formats/bsfp.md. What patches are: `patches.py`.
"""

import triton
import triton.language as tl

from mxconv.kernels.triton.arrays.residual_fields import high_residuals, lane_fields
from mxconv.kernels.triton.launch import ROW_TILES, ROWS, STEP, STEP_TILES
from mxconv.kernels.triton.steps.instructions import count_ones, permute_bytes
from mxconv.kernels.triton.steps.lanes import in_order, lanes_above, lanes_of, patterns_of_nibbles

_HIGH_BYTES = tl.constexpr(-0xFF0100)  # 0xFF00FF00


@triton.jit
def rebuilt_step(
    codes, low, high, starts, hits, firsts, words, program, first_tile, row_tiles, column_tiles,
    NUM_PLANES: tl.constexpr, HAS_ROW_STARTS: tl.constexpr
):  # fmt: skip
    """Patterns of a program's rows and of 16 tiles along the columns.

    Args:
        codes: (T, C, 16) int32, the nibbles of each lane.
        low: (T, C, 16, 2) int32, the low bytes of its residuals.
        high: (T, C, NUM_PLANES, 16) uint8, their further bits as `fields_of` lays them.
        starts: (16 T, 4) int32, tables of rows as `pattern_table` has them, with HAS_ROW_STARTS, else (64, 4).
        hits: (T, C) int32, which half lanes have patches.
        firsts: (T, C) int16, where in the split's words those of each tile begin.
        words: (1, ROWS) pointers to int32: to the first word of the split and of each row's tiles.
        program: which 64 rows.
        first_tile: of the step, along the columns.
        row_tiles: T.
        column_tiles: C.

    Returns:
        (ROWS, STEP) int16 patterns; columns beyond the matrix are finite, rows beyond it are rows of it.
    """
    lane = lanes_of(program, first_tile, row_tiles, column_tiles, STEP_TILES)
    above = lanes_above(program, column_tiles)
    is_there = first_tile + tl.arange(0, STEP_TILES)[:, None] < column_tiles
    row = tl.arange(0, ROWS)[None, :]
    entry = starts + row * 4
    if HAS_ROW_STARTS:
        row_tile = tl.minimum(program * ROW_TILES + row // 16, row_tiles - 1)
        entry = starts + (row_tile * 16 + row % 16) * 4
    pair0, pair1, pair2, pair3 = patterns_of_nibbles(
        tl.load(codes + above + lane, mask=is_there, other=0),
        tl.load(entry), tl.load(entry + 1), tl.load(entry + 2), tl.load(entry + 3)
    )  # fmt: skip
    halves = tl.load(low + above * 2 + _halves(program, first_tile, row_tiles, column_tiles), mask=is_there, other=0)
    front, behind = tl.split(tl.reshape(halves, (STEP_TILES, ROWS, 2)))
    pair0 += permute_bytes(front, 0, 0x4140)  # no half overflows: a start leaves room for each residual
    pair1 += permute_bytes(front, 0, 0x4342)
    pair2 += permute_bytes(behind, 0, 0x4140)
    pair3 += permute_bytes(behind, 0, 0x4342)
    if NUM_PLANES > 0:
        place = tl.max_contiguous((lane - row % 16) * NUM_PLANES + row % 16, (1, 4))
        fields = lane_fields(high + above * NUM_PLANES, place, is_there, NUM_PLANES)
        pair0 += high_residuals(fields, 0, NUM_PLANES)
        pair1 += high_residuals(fields, 1, NUM_PLANES)
        pair2 += high_residuals(fields, 2, NUM_PLANES)
        pair3 += high_residuals(fields, 3, NUM_PLANES)
    front, behind = _patches(hits, firsts, words, program, first_tile, row_tiles, column_tiles)
    pair0 ^= front & _HIGH_BYTES
    pair1 ^= (front << 8) & _HIGH_BYTES
    pair2 ^= behind & _HIGH_BYTES
    pair3 ^= (behind << 8) & _HIGH_BYTES
    return in_order(pair0, pair1, pair2, pair3, STEP)


@triton.jit
def _patches(hits, firsts, words, program, first_tile, row_tiles, column_tiles):
    """The words of the half lanes, (STEP_TILES, ROWS) each; zeros where nothing escapes."""
    row_tile = tl.minimum(tl.arange(0, ROW_TILES)[None, :], row_tiles - 1 - program * ROW_TILES)
    tile = first_tile + tl.arange(0, STEP_TILES)[:, None]
    place = (program * ROW_TILES).to(tl.int64) * column_tiles + (row_tile * column_tiles + tile)
    hit = _each_row(tl.load(hits + place, mask=tile < column_tiles, other=0))
    first = _each_row(tl.load(firsts + place, mask=tile < column_tiles, other=0))
    bit = tl.arange(0, ROWS)[None, :] % 16 * 2
    word = words + (first + count_ones(hit & ((1 << bit) - 1)))
    hit >>= bit
    front = tl.load(word, mask=(hit & 1) != 0, other=0)
    behind = tl.load(word + (hit & 1), mask=(hit & 2) != 0, other=0)
    return front, behind


@triton.jit
def _each_row(tiles):
    return tl.reshape(tl.broadcast_to(tiles[:, :, None], (STEP_TILES, ROW_TILES, 16)), (STEP_TILES, ROWS))


@triton.jit
def _halves(program, first_tile, row_tiles, column_tiles):
    half = tl.arange(0, 2 * ROWS)[None, :]
    tile = first_tile + tl.arange(0, STEP_TILES)[:, None]
    row_tile = tl.minimum(half // 32, row_tiles - 1 - program * ROW_TILES)
    return tl.max_contiguous((row_tile * column_tiles + tile) * 32 + half % 32, (1, 4))
