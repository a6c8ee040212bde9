"""4-bit weights as numbers: the kernel that writes rows of them."""

import torch
import triton
import triton.language as tl

from mxconv.kernels.triton.arrays.four_bit_arrays import FourBitArrays
from mxconv.kernels.triton.launch import (
    NUM_WARPS,
    ROWS,
    SPLIT_TILES,
    STEP,
    STEP_TILES,
    num_row_programs,
    num_splits,
)
from mxconv.kernels.triton.steps.four_bit_step import four_bit_step
from mxconv.kernels.triton.steps.operands import weights_of
from mxconv.kernels.triton.steps.row_scales import row_scales


@triton.jit
def _dequantize(
    codes, levels, scales, out, first_program, num_rows, num_columns, row_tiles, column_tiles, num_blocks,
    IS_E8M0: tl.constexpr
):  # fmt: skip
    split = tl.program_id(1)
    program = first_program + tl.program_id(0)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    last_tile = tl.minimum((split + 1) * SPLIT_TILES, column_tiles)
    for first_tile in range(split * SPLIT_TILES, last_tile, STEP_TILES):
        patterns = four_bit_step(
            codes, levels, scales, program, first_tile, row_tiles, column_tiles, num_blocks, IS_E8M0
        )  # fmt: skip
        weights = weights_of(patterns, True, tl.float32)
        if not IS_E8M0:
            weights *= row_scales(scales, program, first_tile // STEP_TILES, row_tiles, num_blocks, False)
        column = first_tile * 8 + tl.arange(0, STEP)[None, :]
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
        *arrays.codes.shape[:2], arrays.scales.shape[1], IS_E8M0=arrays.is_e8m0, num_warps=NUM_WARPS
    )  # fmt: skip
    return out
