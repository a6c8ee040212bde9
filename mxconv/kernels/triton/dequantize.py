"""4-bit weights as numbers: the kernel that writes rows of them."""

import torch
import triton
import triton.language as tl

from mxconv.kernels.triton.four_bit_arrays import FourBitArrays
from mxconv.kernels.triton.launch import NUM_WARPS, ROWS, SPLIT, num_row_programs, num_splits
from mxconv.kernels.triton.level_step import level_step, row_scales


@triton.jit
def _dequantize(
    codes, levels, scales, out, first_program, num_rows, num_columns, row_tiles, column_tiles, num_blocks,
    WIDTH: tl.constexpr, IS_E8M0: tl.constexpr
):  # fmt: skip
    split = tl.program_id(1)
    program = first_program + tl.program_id(0)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    for first in range(split * SPLIT, tl.minimum((split + 1) * SPLIT, num_columns), WIDTH):
        weights = level_step(codes, levels, program, first // 8, row_tiles, column_tiles, WIDTH).to(tl.float32)
        weights *= row_scales(scales, program, first // WIDTH, row_tiles, num_blocks, IS_E8M0)
        column = first + tl.arange(0, WIDTH)[None, :]
        is_there = (row < num_rows) & (column < num_columns)
        tl.store(out + row.to(tl.int64) * num_columns + column, weights, mask=is_there)


def dequantize(arrays: FourBitArrays, first_row: int = 0, num_rows: int | None = None) -> torch.Tensor:
    """Rows of the values of a 4-bit matrix.

    Args:
        arrays: on the device.
        first_row: a multiple of 64.
        num_rows: at most to the matrix's end; None for all that follow.

    Returns:
        (num_rows, columns) float32.
    """
    assert first_row % ROWS.value == 0
    all_rows, columns = arrays.shape
    num_rows = all_rows - first_row if num_rows is None else num_rows
    out = torch.empty((num_rows, columns), dtype=torch.float32, device=arrays.codes.device)
    _dequantize[num_row_programs(num_rows), num_splits(columns)](
        arrays.codes, arrays.levels, arrays.scales, out, first_row // ROWS.value, num_rows, columns,
        *arrays.codes.shape[:2], arrays.scales.shape[1], WIDTH=arrays.scale_block, IS_E8M0=arrays.is_e8m0,
        num_warps=NUM_WARPS
    )  # fmt: skip
    return out
