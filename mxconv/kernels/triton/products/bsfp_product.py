"""Up to 16 tokens times the exact weights of a BSFP matrix, which are rebuilt in registers and nowhere else."""

import torch
import triton
import triton.language as tl

from mxconv.kernels.triton.arrays.bsfp_arrays import BsfpArrays
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
from mxconv.kernels.triton.steps.operands import activations, weights_of
from mxconv.kernels.triton.steps.rebuilt_step import rebuilt_step


@triton.jit(do_not_specialize=["num_tokens"])  # one machine code for any number of them
def _product(
    codes, low, high, starts, hits, firsts, split_firsts, words, x, partial, num_tokens, num_rows,
    num_columns, row_tiles, column_tiles, NUM_PLANES: tl.constexpr, HAS_ROW_STARTS: tl.constexpr,
    IS_BF16: tl.constexpr, OPERAND: tl.constexpr
):  # fmt: skip
    program, split = tl.program_id(0), tl.program_id(1)
    row = tl.arange(0, ROWS)[:, None]
    row_tile = tl.minimum(program * ROW_TILES + tl.arange(0, ROWS)[None, :] // 16, row_tiles - 1)
    first = tl.load(split_firsts + row_tile * tl.num_programs(1) + split)
    sums = tl.zeros((ROWS, MAX_TOKENS), tl.float32)
    last_tile = tl.minimum((split + 1) * SPLIT_TILES, column_tiles)
    for first_tile in range(split * SPLIT_TILES, last_tile, STEP_TILES):
        patterns = rebuilt_step(
            codes, low, high, starts, hits, firsts, words + first, program, first_tile, row_tiles, column_tiles,
            NUM_PLANES, HAS_ROW_STARTS
        )  # fmt: skip
        weights = weights_of(patterns, IS_BF16, OPERAND)
        tokens = activations(x, first_tile * 8, STEP, num_tokens, num_columns, OPERAND)
        sums = tl.dot(weights, tokens, sums, input_precision="ieee")
    token = tl.arange(0, MAX_TOKENS)[None, :]
    row_of_out = program * ROWS + row
    place = (split * num_tokens + token).to(tl.int64) * num_rows + row_of_out
    tl.store(partial + place, sums, mask=(token < num_tokens) & (row_of_out < num_rows))


def bsfp_product(arrays: BsfpArrays, x: torch.Tensor) -> torch.Tensor:
    """x W^T, sums in float32.

    Args:
        arrays: W, on the device of `x`.
        x: (1..16 tokens, columns), contiguous, in the weights' dtype.

    Returns:
        (tokens, rows) float32. The bits of a token's row depend on that token alone.
    """
    rows, columns = arrays.shape
    row_tiles, column_tiles = arrays.codes.shape[:2]
    splits = num_splits(columns)
    partial = torch.empty((splits, len(x), rows), dtype=torch.float32, device=x.device)
    _product[num_row_programs(rows), splits](
        *arrays.for_kernels(), x, partial, len(x), rows, columns, row_tiles, column_tiles,
        NUM_PLANES=arrays.num_planes, HAS_ROW_STARTS=arrays.has_row_starts, IS_BF16=arrays.dtype == torch.bfloat16,
        OPERAND=OPERANDS[arrays.dtype], num_warps=NUM_WARPS
    )  # fmt: skip
    return add_splits(partial)
