"""The exact weights of BSFP on a GPU: rebuilt in registers, then multiplied by up to 16 tokens, or written as rows.

A pattern is its segment's start plus its residual; then escapes are patched (patches.py). Normative: formats/bsfp.md.
"""

import torch
import triton
import triton.language as tl

from mxconv.gpu.bsfp_arrays import BsfpArrays
from mxconv.gpu.instructions import (
    activations,
    count_ones,
    in_order,
    lanes_above,
    lanes_of,
    patterns_of_nibbles,
    permute_bytes,
    weights_of,
)
from mxconv.gpu.launch import (
    FREE,
    MAX_TOKENS,
    NUM_WARPS,
    OPERANDS,
    ROW_TILES,
    ROWS,
    SPLIT_TILES,
    STEP,
    STEP_TILES,
    RoutedPairs,
    SplitProduct,
    num_row_programs,
    num_splits,
    program_tokens,
    rows_of_places,
    store_sums,
)

# A pipeline would stage loads in shared memory, whose bandwidth the weights need; ptxas alone takes too few registers.
OPTIONS = {"num_warps": NUM_WARPS, "num_stages": 1, "maxnreg": 128}
_HIGH_BYTES = tl.constexpr(-0xFF0100)  # 0xFF00FF00


def bsfp_product(arrays: BsfpArrays, x: torch.Tensor, routed: RoutedPairs | None = None) -> torch.Tensor:
    """x W^T, sums in float32.

    Args:
        arrays: W, on the device of `x`.
        x: (1..16 tokens, columns), contiguous, in the weights' dtype; for a stack a row for each token or each pair.
        routed: the experts of each token, where W is a stack.

    Returns:
        (tokens, rows) float32, for a stack (pairs, rows). A row's bits depend on its row of `x` and its matrix.
    """
    launch = SplitProduct(x, arrays.shape, routed)
    _product[launch.grid](
        *arrays.for_kernels(), x, *launch.arguments, len(arrays.codes) // launch.num_experts, arrays.codes.shape[1],
        PER_ROW=launch.per_row, NUM_PLANES=arrays.num_planes, HAS_ROW_STARTS=arrays.has_row_starts,
        IS_BF16=arrays.dtype == torch.bfloat16, OPERAND=OPERANDS[arrays.dtype], **OPTIONS
    )  # fmt: skip
    return launch.sums()


def rebuild(arrays: BsfpArrays, first_row: int = 0, num_rows: int | None = None) -> torch.Tensor:
    """Rows of the exact matrix, bit for bit.

    Args:
        arrays: on the device.
        first_row: a multiple of 64.
        num_rows: None for all rows up to the end.

    Returns:
        (num_rows, columns) in the matrix's own 16-bit dtype.
    """
    assert first_row % ROWS.value == 0
    all_rows, columns = arrays.shape
    num_rows = all_rows - first_row if num_rows is None else num_rows
    out = torch.empty((num_rows, columns), dtype=torch.int16, device=arrays.codes.device)
    row_tiles, column_tiles = arrays.codes.shape[:2]
    _rebuild[num_row_programs(num_rows), num_splits(columns)](
        *arrays.for_kernels(), out, first_row // ROWS.value, num_rows, columns, row_tiles, column_tiles,
        NUM_PLANES=arrays.num_planes, HAS_ROW_STARTS=arrays.has_row_starts, **OPTIONS
    )  # fmt: skip
    return out.view(arrays.dtype)


@triton.jit(do_not_specialize=FREE)
def _product(
    codes, low, high, starts, hits, firsts, split_firsts, words, x, experts, pairs, places, partial, num_out,
    num_rows, num_columns, row_tiles, column_tiles, NUM_PLANES: tl.constexpr, HAS_ROW_STARTS: tl.constexpr,
    IS_BF16: tl.constexpr, OPERAND: tl.constexpr, PER_ROW: tl.constexpr
):  # fmt: skip
    program, split = tl.program_id(0), tl.program_id(1)
    expert, row_of_x, row_of_out, is_there = program_tokens(experts, pairs, places, num_out, PER_ROW)
    last_tile = tl.minimum((split + 1) * SPLIT_TILES, column_tiles)
    if PER_ROW > 0:
        tiles = expert * row_tiles * column_tiles
        codes += tiles * 16
        low += tiles * 16
        high += tiles * (16 * NUM_PLANES)
        hits += tiles
        firsts += tiles
        split_firsts += expert * row_tiles * tl.num_programs(1)
        if HAS_ROW_STARTS:
            starts += expert * row_tiles * 64
        last_tile = tl.where(tl.max(is_there.to(tl.int32)) > 0, last_tile, 0)
    words += _first_words(split_firsts, program, split, row_tiles)
    marks = _read_marks(hits, firsts, program, split * SPLIT_TILES, last_tile, row_tiles, column_tiles)
    sums = tl.zeros((ROWS, MAX_TOKENS), tl.float32)
    for first_tile in range(split * SPLIT_TILES, last_tile, STEP_TILES):
        read = _read(
            codes, low, high, words, marks, program, first_tile, last_tile, row_tiles, column_tiles, NUM_PLANES
        )  # fmt: skip
        marks = _read_marks(hits, firsts, program, first_tile + STEP_TILES, last_tile, row_tiles, column_tiles)
        patterns = _patterns(read, starts, program, row_tiles, NUM_PLANES, HAS_ROW_STARTS)
        tokens = activations(x, row_of_x, is_there, first_tile * 8, STEP, num_columns, OPERAND)
        sums = tl.dot(weights_of(patterns, IS_BF16, OPERAND), tokens, sums, input_precision="ieee")
    store_sums(partial, sums, row_of_out, is_there, num_out, num_rows)


@triton.jit(do_not_specialize=FREE)
def _rebuild(
    codes, low, high, starts, hits, firsts, split_firsts, words, out, first_program, num_rows,
    num_columns, row_tiles, column_tiles, NUM_PLANES: tl.constexpr, HAS_ROW_STARTS: tl.constexpr
):  # fmt: skip
    split = tl.program_id(1)
    program = first_program + tl.program_id(0)
    row = tl.program_id(0) * ROWS + rows_of_places()
    words += _first_words(split_firsts, program, split, row_tiles)
    last_tile = tl.minimum((split + 1) * SPLIT_TILES, column_tiles)
    for first_tile in range(split * SPLIT_TILES, last_tile, STEP_TILES):
        marks = _read_marks(hits, firsts, program, first_tile, last_tile, row_tiles, column_tiles)
        read = _read(
            codes, low, high, words, marks, program, first_tile, last_tile, row_tiles, column_tiles, NUM_PLANES
        )  # fmt: skip
        patterns = _patterns(read, starts, program, row_tiles, NUM_PLANES, HAS_ROW_STARTS)
        column = first_tile * 8 + tl.arange(0, STEP)[None, :]
        place = row.to(tl.int64) * num_columns + column
        tl.store(out + place, patterns, mask=(row < num_rows) & (column < num_columns))


@triton.jit
def _first_words(split_firsts, program, split, row_tiles):
    """(1, ROWS) int64: the split's first word of patches, for the tiles of each row."""
    row_tile = tl.minimum(program * ROW_TILES + tl.arange(0, ROWS)[None, :] // 16, row_tiles - 1)
    return tl.load(split_firsts + row_tile * tl.num_programs(1) + split)


@triton.jit
def _read_marks(hits, firsts, program, first_tile, last_tile, row_tiles, column_tiles):
    """Which half lanes have patches, and the place of each tile's first in its split: (STEP_TILES, ROW_TILES) each.

    Zeros from `last_tile` on. Patches are found by them, so they are read a step ahead.
    """
    row_tile = tl.minimum(tl.arange(0, ROW_TILES)[None, :], row_tiles - 1 - program * ROW_TILES)
    tile = first_tile + tl.arange(0, STEP_TILES)[:, None]
    place = (program * ROW_TILES).to(tl.int64) * column_tiles + (row_tile * column_tiles + tile)
    is_there = tile < last_tile
    return tl.load(hits + place, mask=is_there, other=0), tl.load(firsts + place, mask=is_there, other=0)


@triton.jit
def _read(
    codes, low, high, words, marks, program, first_tile, last_tile, row_tiles, column_tiles, NUM_PLANES: tl.constexpr
):  # fmt: skip
    """What a step takes from memory, besides activations and marks.

    Args:
        words: (1, ROWS) pointers to int32: to the first word of the split and of each row's tiles.
        marks: what `_read_marks` returns.

    Returns:
        (STEP_TILES, ROWS) each, zeros from `last_tile` on: int32 nibbles, int64 low bytes of residuals, int32 fields of
        the planes beyond them, and the int32 patches of both half lanes, zeros where nothing escapes.
    """
    lane = lanes_of(program, first_tile, row_tiles, column_tiles, STEP_TILES)
    above = lanes_above(program, column_tiles)
    is_there = first_tile + tl.arange(0, STEP_TILES)[:, None] < last_tile
    nibbles = tl.load(codes + above + lane, mask=is_there, other=0)
    residuals = tl.load(low + above + lane, mask=is_there, other=0)
    bit = tl.arange(0, ROWS)[None, :] % 16 * 2
    hit, begin = _each_row(marks[0]), _each_row(marks[1])
    word = words + (begin + count_ones(hit & ((1 << bit) - 1)))
    hit >>= bit
    # Single words are loaded, as masks and places allow no more: what is declared keeps the layout of the other loads.
    first = tl.load(tl.max_contiguous(word, (1, 2)), mask=(hit & 1) != 0, other=0)
    second = tl.load(tl.max_contiguous(word + (hit & 1), (1, 2)), mask=(hit & 2) != 0, other=0)
    fields = nibbles
    if NUM_PLANES > 0:
        row = tl.arange(0, ROWS)[None, :]
        place = tl.max_contiguous((lane - row % 16) * NUM_PLANES + row % 16, (1, 4))
        fields = _lane_fields(high + above * NUM_PLANES, place, is_there, NUM_PLANES)
    return nibbles, residuals, fields, first, second


@triton.jit
def _each_row(tiles):
    return tl.reshape(tl.broadcast_to(tiles[:, :, None], (STEP_TILES, ROW_TILES, 16)), (STEP_TILES, ROWS))


@triton.jit
def _lane_fields(fields, place, is_there, NUM_PLANES: tl.constexpr):
    """The fields of lanes: int32. A lane has NUM_PLANES bytes, 1 to 4: the first at `place`, the others 16 apart."""
    lanes = tl.load(fields + place, mask=is_there, other=0).to(tl.int32)
    for byte in tl.static_range(1, NUM_PLANES):
        lanes |= tl.load(fields + place + 16 * byte, mask=is_there, other=0).to(tl.int32) << (8 * byte)
    return lanes


@triton.jit
def _patterns(read, starts, program, row_tiles, NUM_PLANES: tl.constexpr, HAS_ROW_STARTS: tl.constexpr):
    """Exact patterns of what `_read` returns; `starts` as in `BsfpArrays`.

    Returns:
        (ROWS, STEP) int16 patterns; columns beyond the matrix are finite, rows beyond it repeat rows of it.
    """
    nibbles, residuals, lanes, first, second = read
    row = tl.arange(0, ROWS)[None, :]
    entry = starts + row * 4
    if HAS_ROW_STARTS:
        row_tile = tl.minimum(program * ROW_TILES + row // 16, row_tiles - 1)
        entry = starts + (row_tile * 16 + row % 16) * 4
    pair0, pair1, pair2, pair3 = patterns_of_nibbles(
        nibbles, tl.load(entry), tl.load(entry + 1), tl.load(entry + 2), tl.load(entry + 3)
    )
    low0123, low4567 = residuals.to(tl.int32), (residuals >> 32).to(tl.int32)
    pair0 += permute_bytes(low0123, 0, 0x4140)  # no half overflows: a start leaves room for each residual
    pair1 += permute_bytes(low0123, 0, 0x4342)
    pair2 += permute_bytes(low4567, 0, 0x4140)
    pair3 += permute_bytes(low4567, 0, 0x4342)
    if NUM_PLANES > 0:
        half: tl.constexpr = (1 << (4 * NUM_PLANES)) - 1
        fields = (lanes & half) | (((lanes >> (4 * NUM_PLANES)) & half) << 16)  # columns 0, 2, 4, 6 and 1, 3, 5, 7
        pair0 += _high_residuals(fields, 0, NUM_PLANES)
        pair1 += _high_residuals(fields, 1, NUM_PLANES)
        pair2 += _high_residuals(fields, 2, NUM_PLANES)
        pair3 += _high_residuals(fields, 3, NUM_PLANES)
    pair0 ^= first & _HIGH_BYTES
    pair1 ^= (first << 8) & _HIGH_BYTES
    pair2 ^= second & _HIGH_BYTES
    pair3 ^= (second << 8) & _HIGH_BYTES
    return in_order(pair0, pair1, pair2, pair3, STEP)


@triton.jit
def _high_residuals(fields, PAIR: tl.constexpr, NUM_PLANES: tl.constexpr):
    """Bits 8 and up of the residuals of columns 2 * PAIR (low half) and 2 * PAIR + 1."""
    place: tl.constexpr = NUM_PLANES * PAIR
    mask: tl.constexpr = ((1 << NUM_PLANES) - 1) * 0x1000100
    return (fields >> (place - 8) if place > 8 else fields << (8 - place)) & mask
