"""Products of matrices in fragment order, exact or of 4 bits, with 1 to 16 tokens: one launch.

A program is one warp. It takes 16 rows and a split of the columns, 64 columns a step. Weights go from memory to
registers to `mma.m16n8k16`, never through shared memory; escapes go through one KB of it, a byte a weight. The last of
a row tile's programs to finish adds the sums of all splits in ascending order. Splits follow from the matrix's shape
alone, so a token's bits depend on the token and the matrix.
"""

from collections.abc import Sequence
from typing import Any

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2

from mxconv.codecs.vnni8 import TILE_ROWS as ROWS_OF_A_TILE
from mxconv.gpu.fragment_weights import (
    TOKENS,
    declare_patches,
    draft_weights_of,
    load_escapes,
    load_step,
    put_patches,
    row_table,
    take_patches,
    weights_of,
    words_of,
)
from mxconv.gpu.fragments import GROUP_STEPS, STEP_COLUMNS, FragmentArrays, FragmentDraft
from mxconv.gpu.launch import MAX_TOKENS, RoutedPairs

TILE_ROWS = gl.constexpr(ROWS_OF_A_TILE)
STEP = gl.constexpr(STEP_COLUMNS)
BLOCK = gl.constexpr(STEP_COLUMNS // 2)  # of MXFP4
GROUP = gl.constexpr(GROUP_STEPS)
PROGRAMS = 4096  # of a product, at most about so many: what an H200 runs at a time
MIN_STEPS = 2 * GROUP_STEPS  # of a program
# kernels are not compiled anew for these
FREE = ("num_steps", "split_steps", "per_row", "num_out", "num_rows", "first_tile")
_barrier = getattr(gl, "barrier", None) or gl.thread_barrier  # its name up to Triton 3.6
SUMS = gl.constexpr(gl.NVMMADistributedLayout(version=[2, 0], warps_per_cta=[1, 1], instr_shape=[16, 8]))
LEFT = gl.constexpr(gl.DotOperandLayout(0, SUMS.value, 2))
RIGHT = gl.constexpr(gl.DotOperandLayout(1, SUMS.value, 2))


@gluon.jit
def steps_of(experts, num_steps, split_steps):
    """Where a program begins.

    Returns:
        Its expert, 0 where there is one matrix alone; its row tile among those of all experts; its first step in that
        row tile; its first step and the one after its last among those of all.
    """
    expert = 0
    if experts is not None:
        expert = gl.load(experts + gl.program_id(2))
    row_tile, first_step = expert * gl.num_programs(0) + gl.program_id(0), gl.program_id(1) * split_steps
    begin = row_tile * num_steps + first_step
    return expert, row_tile, first_step, begin, gl.minimum(begin + split_steps, (row_tile + 1) * num_steps)


@gluon.jit
def tokens_of(routed, num_out, AT_MOST: gl.constexpr, LAYOUT: gl.constexpr):
    """The tokens of a program: all, or at most 16 of the pairs of one expert of a stack.

    Of each 16 pairs of an expert the first one's program takes all; those of the others end at once.

    Args:
        routed: `experts` and `pairs` of `RoutedPairs`, None where there is one matrix alone; and how many pairs
            share a row of the activations.
        num_out: rows of the result: tokens, or pairs.

    Returns:
        (AT_MOST,) each: rows of the activations, rows of the result, and whether they exist.
    """
    experts, pairs, per_row = routed
    lane = gl.arange(0, AT_MOST, layout=LAYOUT)
    row_of_x, row_of_out, is_there = lane, lane, lane < num_out
    if experts is not None:
        pair = gl.program_id(2) + lane
        is_there = gl.load(experts + pair, mask=pair < num_out, other=-1) == gl.load(experts + gl.program_id(2))
        row_of_out = gl.load(pairs + pair, mask=is_there, other=0)
        row_of_x = row_of_out // per_row
    return row_of_x, row_of_out, is_there


@gluon.jit
def multiply(weights, tokens, sums):
    """Add the products of 16 rows of weights, as `weights_of` returns them, with (tokens, columns) activations.

    There are 64 columns or, of half as many weights, 32; activations are in `TOKENS`.
    """
    STEPS: gl.constexpr = weights.shape[1]
    # (g, t, step, row half, column half, weight) to (row half, g, step, column half, t, weight)
    left = weights.reshape([8, 4, STEPS, 2, 2, 2]).permute([3, 0, 2, 4, 1, 5]).reshape([TILE_ROWS, 16 * STEPS])
    left = gl.convert_layout(left.to(tokens.dtype, bitcast=True), LEFT, assert_trivial=True)
    # (token, block, t, its step, column half, weight), of which lane 4 token + t has its own, to the same order
    right = tokens.reshape([tokens.shape[0], STEPS // 2, 4, 2, 2, 2]).permute([1, 3, 4, 2, 5, 0])
    right = right.reshape([16 * STEPS, tokens.shape[0]])
    return mma_v2(left, gl.convert_layout(right, RIGHT, assert_trivial=True), sums)


@gluon.jit
def activations_of(
    x, routed, first_step, num_out, num_columns, AT_MOST: gl.constexpr, COLUMNS: gl.constexpr = STEP
):  # fmt: skip
    """Pointers to the (tokens, COLUMNS) activations that a step begins with, and which tokens there are."""
    token, _, is_there = tokens_of(routed, num_out, AT_MOST, gl.SliceLayout(1, TOKENS))
    column = first_step * STEP + gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, TOKENS))[None, :]
    return x + token[:, None] * num_columns + column, is_there[:, None]


@gluon.jit
def store_sums(
    sums, routed, partial, out, counters, expert, num_out, num_rows, AT_MOST: gl.constexpr
):  # fmt: skip
    """Write the (16, tokens) sums of a program; the last of a row tile's programs adds those of all."""
    row_tile, num_splits = gl.program_id(0), gl.num_programs(1)
    row = row_tile * TILE_ROWS + gl.arange(0, TILE_ROWS, layout=gl.SliceLayout(1, SUMS))[:, None]
    _, token, exists = tokens_of(routed, num_out, AT_MOST, gl.SliceLayout(0, SUMS))
    place, is_there = token[None, :] * num_rows + row, (row < num_rows) & exists[None, :]
    if num_splits == 1:
        gl.store(out + place, sums, mask=is_there)
    else:
        count = num_out * num_rows
        gl.store(partial + gl.program_id(1) * count + place, sums, mask=is_there)
        _barrier()  # all lanes' sums are written before one lane says so
        if routed[0] is not None:  # sixteen pairs of an expert count for themselves
            row_tile += (expert + gl.program_id(2) // MAX_TOKENS) * gl.num_programs(0)
        if gl.atomic_add(counters + row_tile, 1, sem="acq_rel") == num_splits - 1:
            _barrier()
            total = gl.load(partial + place, mask=is_there, other=0, cache_modifier=".cg")
            for split in range(1, num_splits):
                total += gl.load(partial + split * count + place, mask=is_there, other=0, cache_modifier=".cg")
            gl.store(out + place, total, mask=is_there)
            gl.store(counters + row_tile, 0)


@gluon.jit(do_not_specialize=FREE)
def product(
    codes, residuals, planes, starts, escapes, firsts, x, experts, pairs, places, partial, out, counters, num_steps,
    split_steps, per_row, num_out, num_rows, num_columns, TOKENS_AT_MOST: gl.constexpr, NUM_PLANES: gl.constexpr
):  # fmt: skip
    """x W^T of a row tile and a split of the columns; arrays as in `FragmentArrays`, grid (row tiles, splits)."""
    if experts is not None and gl.load(places + gl.program_id(2)) % MAX_TOKENS != 0:
        return
    routed = experts, pairs, per_row
    expert, row_tile, first_step, begin, end = steps_of(experts, num_steps, split_steps)
    table, patches = row_table(starts, row_tile), declare_patches()
    take_patches(patches)  # for the zeros
    activations, is_there = activations_of(x, routed, first_step, num_out, num_columns, TOKENS_AT_MOST)
    codes, residuals = words_of(codes, begin, 128), words_of(residuals, begin, 256)
    if NUM_PLANES > 0:
        planes = words_of(planes, begin, 128 * NUM_PLANES)
    firsts += begin * 2 + expert * 3
    first, middle, last = gl.load(firsts), gl.load(firsts + 1), gl.load(firsts + 2)
    sums = gl.zeros([TILE_ROWS, TOKENS_AT_MOST], gl.float32, SUMS)
    for _ in range(begin, end):
        loaded = load_step(codes, residuals)
        tokens = gl.load(activations, mask=is_there, other=0)
        entry = load_escapes(escapes, first, last)
        next_middle, next_last = gl.load(firsts + 3), gl.load(firsts + 4)
        put_patches(patches, escapes, entry, first, middle, last)
        first, middle, last = last, next_middle, next_last
        codes += 128
        residuals += 256
        firsts += 2
        activations += STEP
        sums = multiply(weights_of(loaded, table, patches, planes, NUM_PLANES), tokens, sums)
        if NUM_PLANES > 0:
            planes += 128 * NUM_PLANES
    store_sums(sums, routed, partial, out, counters, expert, num_out, num_rows, TOKENS_AT_MOST)


@gluon.jit(do_not_specialize=FREE)
def draft_product(
    codes, levels, scales, x, experts, pairs, places, partial, out, counters, num_steps, split_steps, per_row,
    num_out, num_rows, num_columns, TOKENS_AT_MOST: gl.constexpr
):  # fmt: skip
    """As `product`, of a `FragmentDraft`: levels are multiplied and added, then the sums of a group are scaled."""
    if experts is not None and gl.load(places + gl.program_id(2)) % MAX_TOKENS != 0:
        return
    routed = experts, pairs, per_row
    expert, _, first_step, begin, end = steps_of(experts, num_steps, split_steps)
    levels += expert * 4
    activations, is_there = activations_of(x, routed, first_step, num_out, num_columns, TOKENS_AT_MOST)
    codes = words_of(codes, begin, 128)
    scales += begin // GROUP * 16 + gl.arange(0, TILE_ROWS, layout=gl.SliceLayout(1, SUMS))[:, None]
    sums = gl.zeros([TILE_ROWS, TOKENS_AT_MOST], gl.float32, SUMS)
    for _ in range(begin, end, GROUP):
        scale = (gl.load(scales).to(gl.int32) << 16).to(gl.float32, bitcast=True)
        first, second = gl.load(codes, cache_modifier=".cg"), gl.load(codes + 128, cache_modifier=".cg")
        first_tokens = gl.load(activations, mask=is_there, other=0)
        second_tokens = gl.load(activations + STEP, mask=is_there, other=0)
        codes += GROUP * 128
        scales += 16
        activations += GROUP * STEP
        products = gl.zeros([TILE_ROWS, TOKENS_AT_MOST], gl.float32, SUMS)
        products = multiply(draft_weights_of(first, levels), first_tokens, products)
        sums += multiply(draft_weights_of(second, levels), second_tokens, products) * scale
    store_sums(sums, routed, partial, out, counters, expert, num_out, num_rows, TOKENS_AT_MOST)


@gluon.jit(do_not_specialize=FREE)
def mxfp4_product(
    codes, levels, scales, x, experts, pairs, places, partial, out, counters, num_steps, split_steps, per_row,
    num_out, num_rows, num_columns, TOKENS_AT_MOST: gl.constexpr
):  # fmt: skip
    """As `draft_product`, of MXFP4: a scale for the sums of a block of 32 columns, of which a step has two."""
    if experts is not None and gl.load(places + gl.program_id(2)) % MAX_TOKENS != 0:
        return
    routed = experts, pairs, per_row
    expert, _, first_step, begin, end = steps_of(experts, num_steps, split_steps)
    levels += expert * 4
    activations, is_there = activations_of(x, routed, first_step, num_out, num_columns, TOKENS_AT_MOST, BLOCK)
    codes = words_of(codes, begin, 128)
    scales += begin * 32 + gl.arange(0, TILE_ROWS, layout=gl.SliceLayout(1, SUMS))[:, None]
    sums = gl.zeros([TILE_ROWS, TOKENS_AT_MOST], gl.float32, SUMS)
    nothing = gl.zeros([TILE_ROWS, TOKENS_AT_MOST], gl.float32, SUMS)
    for _ in range(begin, end):
        words = gl.load(codes, cache_modifier=".cg")
        first_scale, second_scale = gl.load(scales).to(gl.int32), gl.load(scales + 16).to(gl.int32)
        first_tokens = gl.load(activations, mask=is_there, other=0)
        second_tokens = gl.load(activations + BLOCK, mask=is_there, other=0)
        codes += 128
        scales += 32
        activations += STEP
        first, second = gl.split(words.reshape([32, 2, 2]).permute([0, 2, 1]))
        sums += multiply(draft_weights_of(first, levels), first_tokens, nothing) * _power_of_two(first_scale)
        sums += multiply(draft_weights_of(second, levels), second_tokens, nothing) * _power_of_two(second_scale)
    store_sums(sums, routed, partial, out, counters, expert, num_out, num_rows, TOKENS_AT_MOST)


@gluon.jit
def _power_of_two(stored):
    """float32 of E8M0: 0 is 2^-127, a subnormal, and 255 a NaN."""
    bits = gl.maximum(stored * 0x800000, 0x400000) | gl.where(stored == 255, 0x400000, 0)
    return bits.to(gl.float32, bitcast=True)


@gluon.jit(do_not_specialize=FREE)
def patterns_of_rows(
    codes, residuals, planes, starts, escapes, firsts, out, num_steps, split_steps, first_tile, num_rows, num_columns,
    IS_DRAFT: gl.constexpr, NUM_PLANES: gl.constexpr
):  # fmt: skip
    """Write patterns of a row tile and a split, row by row, to (num_rows, num_columns) int16.

    With IS_DRAFT those of the levels, which `starts` has then; the grid is (row tiles, splits).
    """
    row_tile, begin = first_tile + gl.program_id(0), gl.program_id(1) * split_steps
    if not IS_DRAFT:
        table, patches = row_table(starts, row_tile), declare_patches()
        take_patches(patches)
    row = gl.program_id(0) * TILE_ROWS + gl.arange(0, TILE_ROWS, layout=gl.SliceLayout(1, TOKENS))[:, None]
    for number in range(begin, gl.minimum(begin + split_steps, num_steps)):
        step = row_tile * num_steps + number
        if IS_DRAFT:
            weights = draft_weights_of(gl.load(words_of(codes, step, 128)), starts)
        else:
            loaded = load_step(words_of(codes, step, 128), words_of(residuals, step, 256))
            first, middle = gl.load(firsts + step * 2), gl.load(firsts + step * 2 + 1)
            last = gl.load(firsts + step * 2 + 2)
            put_patches(patches, escapes, load_escapes(escapes, first, last), first, middle, last)
            own_planes = planes
            if NUM_PLANES > 0:
                own_planes = words_of(planes, step, 128 * NUM_PLANES)
            weights = weights_of(loaded, table, patches, own_planes, NUM_PLANES)
        # (g, t, block, its step, row half, column half, weight) to (row half, g, block, t, step, column half, weight)
        tile = weights.reshape([8, 4, 2, 2, 2, 2, 2]).permute([4, 0, 2, 1, 3, 5, 6]).reshape([TILE_ROWS, STEP])
        tile = gl.convert_layout(tile, TOKENS, assert_trivial=True)
        column = number * STEP + gl.arange(0, STEP, layout=gl.SliceLayout(0, TOKENS))[None, :]
        place = row.to(gl.int64) * num_columns + column
        gl.store(out + place, tile, mask=(row < num_rows) & (column < num_columns))


def fragment_product(
    arrays: FragmentArrays | FragmentDraft, x: torch.Tensor, routed: RoutedPairs | None = None
) -> torch.Tensor:
    """x W^T, sums in float32.

    Args:
        arrays: W, on the device of `x`. Two products of one matrix must not run at the same time, in two streams.
        x: (1..16 tokens, columns) in the dtype of W, of a draft bfloat16; contiguous. For a stack a row for each token,
            or for each pair.
        routed: the experts of each token, at most 16 pairs for each expert of all, where W is a stack.

    Returns:
        (tokens, rows) float32, for a stack (pairs, rows). A row's bits depend on its row of `x` and on its matrix.
    """
    row_tiles, num_steps = arrays.codes.shape[:2]
    num_out, rows, per_row, groups = len(x), arrays.shape[0], 0, 1
    of_pairs: tuple[torch.Tensor | None, ...] = None, None, None
    if routed is not None:
        row_tiles //= routed.num_experts
        num_out = groups = len(routed.experts)
        of_pairs, per_row = (routed.experts, routed.pairs, routed.places), num_out // len(x)
    splits, split_steps = cut(row_tiles, num_steps)
    if missing := num_steps * STEP_COLUMNS - x.shape[1]:
        x = torch.nn.functional.pad(x, (0, missing))
    partial = torch.empty((splits if splits > 1 else 0, num_out, rows), dtype=torch.float32, device=x.device)
    out = torch.empty((num_out, rows), dtype=torch.float32, device=x.device)
    numbers = (num_steps, split_steps, per_row, num_out, rows, x.shape[1])
    constants = {"TOKENS_AT_MOST": 8 if num_out <= 8 else 16}
    if isinstance(arrays, FragmentDraft):
        kernel = mxfp4_product if arrays.is_e8m0 else draft_product
        own: Sequence[torch.Tensor | None] = [arrays.codes, arrays.levels, arrays.scales]
    else:
        kernel, own, constants["NUM_PLANES"] = product, arrays.for_kernels(), arrays.num_planes
    grid = row_tiles, splits, groups
    launch(kernel, grid, *own, x, *of_pairs, partial, out, arrays.counters, *numbers, **constants)
    return out


def fragment_patterns(arrays: FragmentArrays | FragmentDraft, first_row: int, num_rows: int) -> torch.Tensor:
    """Rows of a matrix as patterns, of a draft those of its levels.

    Args:
        arrays: on the device.
        first_row: a multiple of 16.
        num_rows: from there on.

    Returns:
        (num_rows, columns) int16.
    """
    is_draft, num_planes = isinstance(arrays, FragmentDraft), 0
    if isinstance(arrays, FragmentDraft):
        own: Sequence[torch.Tensor | None] = [arrays.codes, None, None, arrays.levels, None, None]
    else:
        own, num_planes = arrays.for_kernels(), arrays.num_planes
    columns, num_steps, row_tiles = arrays.shape[1], arrays.codes.shape[1], -(-num_rows // TILE_ROWS.value)
    out = torch.empty((num_rows, columns), dtype=torch.int16, device=arrays.codes.device)
    splits, split_steps = cut(row_tiles, num_steps)
    numbers = num_steps, split_steps, first_row // TILE_ROWS.value, num_rows, columns
    grid = row_tiles, splits
    launch(patterns_of_rows, grid, *own, out, *numbers, IS_DRAFT=is_draft, NUM_PLANES=num_planes)
    return out


def cut(row_tiles: int, num_steps: int) -> tuple[int, int]:
    """How many splits a matrix has, and of how many steps each: by its shape alone, so that sums have one order."""
    most = max(min(PROGRAMS // row_tiles, num_steps // MIN_STEPS), 1)
    split_steps = -(-num_steps // (most * GROUP_STEPS)) * GROUP_STEPS
    return -(-num_steps // split_steps), split_steps


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """Run a kernel of one warp a program."""
    kernel[grid](*arguments, **constants, num_warps=1)
