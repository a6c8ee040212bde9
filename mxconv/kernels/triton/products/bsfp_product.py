"""Up to 16 tokens times the exact weights of a BSFP matrix, which are rebuilt in registers and nowhere else.

Of a stack of experts, each token times the matrices that it is sent to.
"""

import torch
import triton
import triton.language as tl

from mxconv.kernels.triton.arrays.bsfp_arrays import BsfpArrays
from mxconv.kernels.triton.chosen import Chosen, RowsOf
from mxconv.kernels.triton.launch import (
    MAX_TOKENS,
    NUM_WARPS,
    OPERANDS,
    ROW_TILES,
    ROWS,
    SPLIT_TILES,
    STEP,
    STEP_TILES,
    num_row_programs,
    num_splits,
)
from mxconv.kernels.triton.products.split_sums import add_splits
from mxconv.kernels.triton.steps.chosen_rows import chosen_rows
from mxconv.kernels.triton.steps.operands import activations, weights_of
from mxconv.kernels.triton.steps.rebuilt_step import rebuilt_step


@triton.jit(do_not_specialize=["num_out"])  # one machine code for any number of them
def _product(
    codes, low, high, starts, hits, firsts, split_firsts, words, x, experts, pairs, places, partial, num_out,
    num_rows, num_columns, row_tiles, column_tiles, NUM_PLANES: tl.constexpr, HAS_ROW_STARTS: tl.constexpr,
    IS_BF16: tl.constexpr, OPERAND: tl.constexpr, PER_ROW: tl.constexpr
):  # fmt: skip
    program, split = tl.program_id(0), tl.program_id(1)
    expert, row_of_x, row_of_out, is_there = chosen_rows(experts, pairs, places, num_out, PER_ROW)
    last_tile = tl.minimum((split + 1) * SPLIT_TILES, column_tiles)
    if PER_ROW > 0:
        tiles = expert * row_tiles * column_tiles
        codes += tiles * 16
        low += tiles * 32
        high += tiles * (16 * NUM_PLANES)
        hits += tiles
        firsts += tiles
        split_firsts += expert * row_tiles * tl.num_programs(1)
        if HAS_ROW_STARTS:
            starts += expert * row_tiles * 64
        last_tile = tl.where(tl.max(is_there.to(tl.int32)) > 0, last_tile, 0)
    row_tile = tl.minimum(program * ROW_TILES + tl.arange(0, ROWS)[None, :] // 16, row_tiles - 1)
    first = tl.load(split_firsts + row_tile * tl.num_programs(1) + split)
    sums = tl.zeros((ROWS, MAX_TOKENS), tl.float32)
    for first_tile in range(split * SPLIT_TILES, last_tile, STEP_TILES):
        patterns = rebuilt_step(
            codes, low, high, starts, hits, firsts, words + first, program, first_tile, row_tiles, column_tiles,
            NUM_PLANES, HAS_ROW_STARTS
        )  # fmt: skip
        weights = weights_of(patterns, IS_BF16, OPERAND)
        tokens = activations(x, row_of_x, is_there, first_tile * 8, STEP, num_columns, OPERAND)
        sums = tl.dot(weights, tokens, sums, input_precision="ieee")
    row = program * ROWS + tl.arange(0, ROWS)[:, None]
    place = (split * num_out + row_of_out).to(tl.int64) * num_rows + row
    tl.store(partial + place, sums, mask=is_there & (row < num_rows))


def bsfp_product(arrays: BsfpArrays, x: torch.Tensor, chosen: Chosen | None = None) -> torch.Tensor:
    """x W^T, sums in float32.

    Args:
        arrays: W, on the device of `x`.
        x: (1..16 tokens, columns), contiguous, in the weights' dtype; of a stack a row for each token, or each pair.
        chosen: the experts of each token, where W is a stack.

    Returns:
        (tokens, rows) float32, of a stack (pairs, rows). The bits of a row depend on its row of `x` and its matrix.
    """
    rows, columns = arrays.shape
    rows_of = RowsOf(x, chosen)
    column_tiles, splits = arrays.codes.shape[1], num_splits(columns)
    partial = torch.empty((splits, rows_of.num_out, rows), dtype=torch.float32, device=x.device)
    _product[num_row_programs(rows), splits, rows_of.num_groups](
        *arrays.for_kernels(), x, *rows_of.arrays, partial, rows_of.num_out, rows, columns,
        len(arrays.codes) // rows_of.num_experts, column_tiles, PER_ROW=rows_of.per_row,
        NUM_PLANES=arrays.num_planes, HAS_ROW_STARTS=arrays.has_row_starts, IS_BF16=arrays.dtype == torch.bfloat16,
        OPERAND=OPERANDS[arrays.dtype], num_warps=NUM_WARPS
    )  # fmt: skip
    return add_splits(partial)
