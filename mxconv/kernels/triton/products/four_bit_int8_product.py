"""Up to 16 tokens in int8 times a 4-bit matrix of integer levels: exact integers a block of 32, then both scales.

Late scaling, ML-SpecQD §III-D (arXiv 2503.13565), as the CPU's kernels have it: of at most 1024 columns the sums are
those of the NumPy reference, bit for bit; of more they are its sums over splits, added in order.
"""

import torch
import triton
import triton.language as tl

from mxconv.kernels.triton.arrays.four_bit_arrays import FourBitArrays
from mxconv.kernels.triton.launch import MAX_TOKENS, NUM_WARPS, ROWS, SPLIT, num_row_programs, num_splits
from mxconv.kernels.triton.products.int8_activations import BLOCK, quantize_int8
from mxconv.kernels.triton.products.split_sums import add_splits
from mxconv.kernels.triton.steps.int8_step import int8_step
from mxconv.kernels.triton.steps.row_scales import row_scales


@triton.jit(do_not_specialize=["num_tokens"])  # one machine code for any number of them
def _product(
    codes, levels, scales, x, x_scales, partial, num_tokens, num_rows, num_columns, row_tiles, column_tiles,
    num_blocks, num_x_blocks, SCALE_BLOCK: tl.constexpr, IS_E8M0: tl.constexpr
):  # fmt: skip
    program, split = tl.program_id(0), tl.program_id(1)
    token = tl.arange(0, MAX_TOKENS)[None, :]
    sums = tl.zeros((ROWS, MAX_TOKENS), tl.float32)
    for first in range(split * SPLIT, tl.minimum((split + 1) * SPLIT, num_columns), BLOCK):
        weights = int8_step(codes, levels, program, first // 8, row_tiles, column_tiles)
        column = first + tl.arange(0, BLOCK)[:, None]
        place = token * (num_x_blocks * BLOCK) + column
        tokens = tl.load(x + place, mask=(token < num_tokens) & (column >= 0), other=0)
        integers = tl.dot(weights, tokens, out_dtype=tl.int32)
        x_scale = tl.load(x_scales + token * num_x_blocks + first // BLOCK, mask=token < num_tokens, other=0)
        scale = row_scales(scales, program, first // SCALE_BLOCK, row_tiles, num_blocks, IS_E8M0)
        sums += integers.to(tl.float32) * x_scale * scale
    row = program * ROWS + tl.arange(0, ROWS)[:, None]
    place = (split * num_tokens + token).to(tl.int64) * num_rows + row
    tl.store(partial + place, sums, mask=(token < num_tokens) & (row < num_rows))


def four_bit_int8_product(arrays: FourBitArrays, x: torch.Tensor) -> torch.Tensor:
    """x W^T with `x` rounded to int8; a token that is not finite becomes NaN.

    Args:
        arrays: W with integer levels, on the device of `x`.
        x: (1..16 tokens, columns) of a float type, contiguous.

    Returns:
        (tokens, rows) float32. The bits of a token's row depend on that token alone.
    """
    assert arrays.int8_levels is not None
    rows, columns = arrays.shape
    splits = num_splits(columns)
    x_codes, x_scales = quantize_int8(x)
    partial = torch.empty((splits, len(x), rows), dtype=torch.float32, device=x.device)
    _product[num_row_programs(rows), splits](
        arrays.codes, arrays.int8_levels, arrays.scales, x_codes, x_scales, partial, len(x), rows, columns,
        *arrays.codes.shape[:2], arrays.scales.shape[1], x_scales.shape[1], SCALE_BLOCK=arrays.scale_block,
        IS_E8M0=arrays.is_e8m0, num_warps=NUM_WARPS, enable_fp_fusion=False
    )  # fmt: skip
    return add_splits(partial)
