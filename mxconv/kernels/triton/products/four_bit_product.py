"""Up to 16 tokens in BF16 times a 4-bit matrix: their levels by byte permutation, in registers."""

import torch
import triton
import triton.language as tl

from mxconv.kernels.triton.arrays.four_bit_arrays import FourBitArrays
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
from mxconv.kernels.triton.steps.four_bit_step import four_bit_step
from mxconv.kernels.triton.steps.operands import activations, weights_of
from mxconv.kernels.triton.steps.row_scales import row_scales


@triton.jit(do_not_specialize=["num_tokens"])  # one machine code for any number of them
def _product(
    codes, levels, scales, x, partial, num_tokens, num_rows, num_columns, row_tiles, column_tiles, num_blocks,
    IS_E8M0: tl.constexpr, OPERAND: tl.constexpr
):  # fmt: skip
    program, split = tl.program_id(0), tl.program_id(1)
    sums = tl.zeros((ROWS, MAX_TOKENS), tl.float32)
    last_tile = tl.minimum((split + 1) * SPLIT_TILES, column_tiles)
    for first_tile in range(split * SPLIT_TILES, last_tile, STEP_TILES):
        patterns = four_bit_step(
            codes, levels, scales, program, first_tile, row_tiles, column_tiles, num_blocks, IS_E8M0
        )  # fmt: skip
        weights = weights_of(patterns, True, OPERAND)
        tokens = activations(x, first_tile * 8, STEP, num_tokens, num_columns, OPERAND)
        if IS_E8M0:
            sums = tl.dot(weights, tokens, sums, input_precision="ieee")
        else:
            products = tl.dot(weights, tokens, input_precision="ieee")
            sums += products * row_scales(scales, program, first_tile // STEP_TILES, row_tiles, num_blocks, False)
    token = tl.arange(0, MAX_TOKENS)[None, :]
    row = program * ROWS + tl.arange(0, ROWS)[:, None]
    place = (split * num_tokens + token).to(tl.int64) * num_rows + row
    tl.store(partial + place, sums, mask=(token < num_tokens) & (row < num_rows))


def four_bit_product(arrays: FourBitArrays, x: torch.Tensor) -> torch.Tensor:
    """x W^T, sums in float32.

    Args:
        arrays: W, on the device of `x`.
        x: (1..16 tokens, columns) bfloat16, contiguous.

    Returns:
        (tokens, rows) float32. The bits of a token's row depend on that token alone.
    """
    rows, columns = arrays.shape
    splits = num_splits(columns)
    partial = torch.empty((splits, len(x), rows), dtype=torch.float32, device=x.device)
    _product[num_row_programs(rows), splits](
        arrays.codes, arrays.levels, arrays.scales, x, partial, len(x), rows, columns, *arrays.codes.shape[:2],
        arrays.scales.shape[1], IS_E8M0=arrays.is_e8m0, OPERAND=OPERANDS[torch.bfloat16],
        num_warps=NUM_WARPS
    )  # fmt: skip
    return add_splits(partial)
