"""Up to 16 tokens in BF16 times a 4-bit matrix: levels by byte permutation, in registers. Stacks as in BSFP."""

import torch
import triton
import triton.language as tl

from mxconv.kernels.triton.arrays.four_bit_arrays import FourBitArrays
from mxconv.kernels.triton.chosen import Chosen, RowsOf
from mxconv.kernels.triton.launch import (
    MAX_TOKENS,
    NUM_WARPS,
    OPERANDS,
    ROWS,
    SPLIT_TILES,
    STEP,
    STEP_TILES,
    num_row_programs,
    num_splits,
)
from mxconv.kernels.triton.products.split_sums import add_splits
from mxconv.kernels.triton.steps.chosen_rows import chosen_rows
from mxconv.kernels.triton.steps.four_bit_step import four_bit_step
from mxconv.kernels.triton.steps.operands import activations, weights_of
from mxconv.kernels.triton.steps.row_scales import row_scales


@triton.jit(do_not_specialize=["num_out"])  # one machine code for any number of them
def _product(
    codes, levels, scales, x, experts, pairs, places, partial, num_out, num_rows, num_columns, row_tiles,
    column_tiles, num_blocks, IS_E8M0: tl.constexpr, OPERAND: tl.constexpr, PER_ROW: tl.constexpr
):  # fmt: skip
    program, split = tl.program_id(0), tl.program_id(1)
    expert, row_of_x, row_of_out, is_there = chosen_rows(experts, pairs, places, num_out, PER_ROW)
    sums = tl.zeros((ROWS, MAX_TOKENS), tl.float32)
    last_tile = tl.minimum((split + 1) * SPLIT_TILES, column_tiles)
    if PER_ROW > 0:
        codes += expert * row_tiles * column_tiles * 16
        scales += expert * row_tiles * num_blocks * 16
        levels += expert * (ROWS * 4)
        last_tile = tl.where(tl.max(is_there.to(tl.int32)) > 0, last_tile, 0)
    for first_tile in range(split * SPLIT_TILES, last_tile, STEP_TILES):
        patterns = four_bit_step(
            codes, levels, scales, program, first_tile, row_tiles, column_tiles, num_blocks, IS_E8M0
        )  # fmt: skip
        weights = weights_of(patterns, True, OPERAND)
        tokens = activations(x, row_of_x, is_there, first_tile * 8, STEP, num_columns, OPERAND)
        if IS_E8M0:
            sums = tl.dot(weights, tokens, sums, input_precision="ieee")
        else:
            products = tl.dot(weights, tokens, input_precision="ieee")
            sums += products * row_scales(scales, program, first_tile // STEP_TILES, row_tiles, num_blocks, False)
    row = program * ROWS + tl.arange(0, ROWS)[:, None]
    place = (split * num_out + row_of_out).to(tl.int64) * num_rows + row
    tl.store(partial + place, sums, mask=is_there & (row < num_rows))


def four_bit_product(arrays: FourBitArrays, x: torch.Tensor, chosen: Chosen | None = None) -> torch.Tensor:
    """x W^T, sums in float32.

    Args:
        arrays: W, on the device of `x`.
        x: (1..16 tokens, columns) bfloat16, contiguous; of a stack a row for each token, or each pair.
        chosen: the experts of each token, where W is a stack.

    Returns:
        As `bsfp_product`.
    """
    rows, columns = arrays.shape
    rows_of = RowsOf(x, chosen)
    column_tiles, splits = arrays.codes.shape[1], num_splits(columns)
    partial = torch.empty((splits, rows_of.num_out, rows), dtype=torch.float32, device=x.device)
    _product[num_row_programs(rows), splits, rows_of.num_groups](
        arrays.codes, arrays.levels, arrays.scales, x, *rows_of.arrays, partial, rows_of.num_out, rows, columns,
        len(arrays.codes) // rows_of.num_experts, column_tiles, arrays.scales.shape[1], IS_E8M0=arrays.is_e8m0,
        OPERAND=OPERANDS[torch.bfloat16], PER_ROW=rows_of.per_row, num_warps=NUM_WARPS
    )  # fmt: skip
    return add_splits(partial)
