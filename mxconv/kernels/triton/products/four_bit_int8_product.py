"""Up to 16 tokens in int8 times a 4-bit matrix of integer levels: exact integers a block of 32, then both scales.

Late scaling, ML-SpecQD §III-D (arXiv 2503.13565), as the CPU's kernels have it: of at most 1024 columns the sums are
those of the NumPy reference, bit for bit; of more they are its sums over splits, added in order.
"""

import torch
import triton
import triton.language as tl

from mxconv.kernels.triton.arrays.four_bit_arrays import FourBitArrays
from mxconv.kernels.triton.chosen import Chosen, RowsOf
from mxconv.kernels.triton.launch import MAX_TOKENS, NUM_WARPS, ROWS, SPLIT, num_row_programs, num_splits
from mxconv.kernels.triton.products.int8_activations import BLOCK, quantize_int8
from mxconv.kernels.triton.products.split_sums import add_splits
from mxconv.kernels.triton.steps.chosen_rows import chosen_rows
from mxconv.kernels.triton.steps.int8_step import int8_step
from mxconv.kernels.triton.steps.row_scales import row_scales


@triton.jit(do_not_specialize=["num_out"])  # one machine code for any number of them
def _product(
    codes, levels, scales, x, x_scales, experts, pairs, places, partial, num_out, num_rows, num_columns, row_tiles,
    column_tiles, num_blocks, num_x_blocks, SCALE_BLOCK: tl.constexpr, IS_E8M0: tl.constexpr, PER_ROW: tl.constexpr
):  # fmt: skip
    program, split = tl.program_id(0), tl.program_id(1)
    expert, row_of_x, row_of_out, is_there = chosen_rows(experts, pairs, places, num_out, PER_ROW)
    sums = tl.zeros((ROWS, MAX_TOKENS), tl.float32)
    last = tl.minimum((split + 1) * SPLIT, num_columns)
    if PER_ROW > 0:
        codes += expert * row_tiles * column_tiles * 16
        scales += expert * row_tiles * num_blocks * 16
        levels += expert * 4
        last = tl.where(tl.max(is_there.to(tl.int32)) > 0, last, 0)
    for first in range(split * SPLIT, last, BLOCK):
        weights = int8_step(codes, levels, program, first // 8, row_tiles, column_tiles)
        column = first + tl.arange(0, BLOCK)[:, None]
        place = row_of_x * (num_x_blocks * BLOCK) + column
        tokens = tl.load(x + place, mask=is_there & (column >= 0), other=0)
        integers = tl.dot(weights, tokens, out_dtype=tl.int32)
        x_scale = tl.load(x_scales + row_of_x * num_x_blocks + first // BLOCK, mask=is_there, other=0)
        scale = row_scales(scales, program, first // SCALE_BLOCK, row_tiles, num_blocks, IS_E8M0)
        sums += integers.to(tl.float32) * x_scale * scale
    row = program * ROWS + tl.arange(0, ROWS)[:, None]
    place = (split * num_out + row_of_out).to(tl.int64) * num_rows + row
    tl.store(partial + place, sums, mask=is_there & (row < num_rows))


def four_bit_int8_product(arrays: FourBitArrays, x: torch.Tensor, chosen: Chosen | None = None) -> torch.Tensor:
    """x W^T with `x` rounded to int8; a token that is not finite becomes NaN.

    Args:
        arrays: W with integer levels, on the device of `x`.
        x: (1..16 tokens, columns) of a float type, contiguous; of a stack a row for each token, or each pair.
        chosen: the experts of each token, where W is a stack.

    Returns:
        As `bsfp_product`.
    """
    assert arrays.int8_levels is not None
    rows, columns = arrays.shape
    rows_of = RowsOf(x, chosen)
    column_tiles, splits = arrays.codes.shape[1], num_splits(columns)
    x_codes, x_scales = quantize_int8(x)
    partial = torch.empty((splits, rows_of.num_out, rows), dtype=torch.float32, device=x.device)
    _product[num_row_programs(rows), splits, rows_of.num_groups](
        arrays.codes, arrays.int8_levels, arrays.scales, x_codes, x_scales, *rows_of.arrays, partial, rows_of.num_out,
        rows, columns, len(arrays.codes) // rows_of.num_experts, column_tiles, arrays.scales.shape[1],
        x_scales.shape[1], SCALE_BLOCK=arrays.scale_block, IS_E8M0=arrays.is_e8m0, PER_ROW=rows_of.per_row,
        num_warps=NUM_WARPS, enable_fp_fusion=False
    )  # fmt: skip
    return add_splits(partial)
