"""Escapes of BSFP: lists, one a tile, that kernels lay over the lanes before they rebuild the weights.

A list ascends, so that the escapes of a lane lie side by side in that of its tile. Each lane finds its first one by
bisection and takes them one after the other: some turns, however long the lists are.
"""

import triton
import triton.language as tl


@triton.jit
def escapes_of_lanes(counts, first, rows, positions, high_bytes):
    """What the lists say of each lane.

    Args:
        counts: (tiles, rows) int32, how many escapes each lane's tile has.
        first: (tiles, rows) int64, the first of them in the lists.
        rows: (1, rows) int32, each lane's row in its tile.
        positions: the list of positions, 8 * row + column.
        high_bytes: the list of bits 15..8.

    Returns:
        Four (tiles, rows) int32 of a byte a column: 255 where columns 0..3 escape, and 4..7; their high bytes.
    """
    longest = tl.max(counts)
    width = 1
    while 2 * width <= longest:
        width *= 2
    before = tl.zeros_like(counts)  # entries of rows above
    while (width > 0) & (longest > 0):
        probe = before + width
        is_in = probe <= counts
        position = tl.load(positions + first + probe - 1, mask=is_in, other=255).to(tl.int32)
        before = tl.where(position < 8 * rows, probe, before)
        width //= 2

    mask, mask_behind = tl.zeros_like(counts), tl.zeros_like(counts)
    bytes_of, bytes_behind = tl.zeros_like(counts), tl.zeros_like(counts)
    position = tl.load(positions + first + before, mask=before < counts, other=255).to(tl.int32)
    is_hit = position // 8 == rows
    while tl.max(is_hit.to(tl.int32)) > 0:
        high = tl.load(high_bytes + first + before, mask=is_hit, other=0).to(tl.int32)
        shift = 8 * (position % 4)
        is_front = is_hit & (position % 8 < 4)
        is_behind = is_hit & (position % 8 >= 4)
        mask |= tl.where(is_front, 255 << shift, 0)
        mask_behind |= tl.where(is_behind, 255 << shift, 0)
        bytes_of |= tl.where(is_front, high << shift, 0)
        bytes_behind |= tl.where(is_behind, high << shift, 0)
        before += 1
        position = tl.load(positions + first + before, mask=is_hit & (before < counts), other=255).to(tl.int32)
        is_hit = position // 8 == rows
    return mask, mask_behind, bytes_of, bytes_behind
