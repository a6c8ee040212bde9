"""The exact 16-bit patterns of a step of BSFP, in registers: segment start plus residual, then the escapes patched.

A *lane* is one row of one tile, eight columns: four bytes of nibbles, byte j holding columns j and j + 4; eight bytes
of residuals. Kernels hold lanes as (tiles, rows) words and decode columns j and j + 4 of all lanes at a time, as the
two halves of 32 bits. Normative text: formats/bsfp.md, formats/vnni8.md.
"""

import triton
import triton.language as tl

from mxconv.kernels.triton.escapes import escapes_of_lanes
from mxconv.kernels.triton.launch import ROW_TILES, ROWS, STEP, STEP_TILES


@triton.jit
def rebuilt_step(
    codes, low, high, starts, counts, firsts, positions, high_bytes, first, program, first_tile, row_tiles,
    column_tiles, NUM_PLANES: tl.constexpr, HAS_ROW_STARTS: tl.constexpr
):  # fmt: skip
    """Patterns of a program's rows and of 16 tiles along the columns.

    Args:
        codes: (T, C, 16) int32, the nibbles of each lane.
        low: (T, C, 16, 2) int32, the low bytes of its residuals.
        high: (T, C, NUM_PLANES, 16) uint8, their bit planes.
        starts: (16 T, 16) int16 by row and nibble with HAS_ROW_STARTS, else (1, 16).
        counts: (T, C) uint8, escapes of each tile.
        firsts: (T, C) int16, where in the split's part of the lists they begin.
        positions: (n,) uint8, the list of escapes; `high_bytes` too.
        first: (1, ROWS) int64, where in the lists the part of the split and of each row's tiles begins.
        program: which 64 rows.
        first_tile: of the step, along the columns.
        row_tiles: T.
        column_tiles: C.

    Returns:
        (ROWS, STEP) int16 patterns, finite ones beyond the matrix.
    """
    row = tl.arange(0, ROWS)[None, :]  # last, since the lanes of 16 rows lie side by side
    tile = first_tile + tl.arange(0, STEP_TILES)[:, None]
    is_there = (program * ROW_TILES + row // 16 < row_tiles) & (tile < column_tiles)
    above = (program * ROW_TILES).to(tl.int64) * column_tiles  # tiles of the rows above
    lane_tile = row // 16 * column_tiles + tile
    lane = lane_tile * 16 + row % 16

    nibbles = tl.load(codes + above * 16 + lane, mask=is_there, other=0)
    front = tl.load(low + above * 32 + lane * 2, mask=is_there, other=0)
    behind = tl.load(low + above * 32 + lane * 2 + 1, mask=is_there, other=0)
    planes = tl.zeros_like(nibbles)
    for plane in tl.static_range(NUM_PLANES):
        place = (above + lane_tile) * (16 * NUM_PLANES) + 16 * plane + row % 16
        planes |= tl.load(high + place, mask=is_there, other=0).to(tl.int32) << (8 * plane)
    starts_of = starts + (program * ROWS + row) * 16 if HAS_ROW_STARTS else starts + row * 0

    counts_of = tl.load(counts + above + lane_tile, mask=is_there, other=0).to(tl.int32)
    first_of = first + tl.load(firsts + above + lane_tile, mask=is_there, other=0)
    patches = escapes_of_lanes(counts_of, first_of, row % 16, positions, high_bytes)

    lanes = (nibbles, front, behind, planes, patches)
    pair0 = _pair(lanes, starts_of, is_there, 0, NUM_PLANES)
    pair1 = _pair(lanes, starts_of, is_there, 1, NUM_PLANES)
    pair2 = _pair(lanes, starts_of, is_there, 2, NUM_PLANES)
    pair3 = _pair(lanes, starts_of, is_there, 3, NUM_PLANES)
    even = tl.join(tl.join(pair0, pair0 >> 16), tl.join(pair2, pair2 >> 16))  # (tiles, rows, half, pair // 2)
    odd = tl.join(tl.join(pair1, pair1 >> 16), tl.join(pair3, pair3 >> 16))
    patterns = tl.permute(tl.join(even, odd).to(tl.int16), (1, 0, 2, 3, 4))
    return tl.reshape(patterns, (ROWS, STEP))


@triton.jit
def _pair(lanes, starts, is_there, PAIR: tl.constexpr, NUM_PLANES: tl.constexpr):
    """(tiles, rows) int32: the patterns of columns PAIR (low half) and PAIR + 4 of all lanes."""
    nibbles, front, behind, planes, patches = lanes
    mask, mask_behind, patch, patch_behind = patches
    shift: tl.constexpr = 8 * PAIR
    start = tl.load(starts + ((nibbles >> shift) & 15), mask=is_there, other=0).to(tl.int32) & 0xFFFF
    start |= tl.load(starts + ((nibbles >> (shift + 4)) & 15), mask=is_there, other=0).to(tl.int32) << 16
    residual = ((front >> shift) & 255) | (((behind >> shift) & 255) << 16)
    for plane in tl.static_range(NUM_PLANES):
        bits = planes >> (8 * plane + PAIR)
        residual |= ((bits & 1) << (8 + plane)) | ((bits & 16) << (20 + plane))
    pair = start + residual  # neither half overflows: a start leaves room for each residual
    keep = ((mask >> shift) & 255) << 8 | ((mask_behind >> shift) & 255) << 24
    patched = ((patch >> shift) & 255) << 8 | ((patch_behind >> shift) & 255) << 24
    return (pair & ~keep) | patched
