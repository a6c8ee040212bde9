"""BSFP back to its 16-bit patterns, bit for bit: the kernel that writes rows of them."""

import torch
import triton
import triton.language as tl

from mxconv.kernels.triton.arrays.bsfp_arrays import BsfpArrays
from mxconv.kernels.triton.launch import (
    NUM_WARPS,
    ROW_TILES,
    ROWS,
    SPLIT_TILES,
    STEP,
    STEP_TILES,
    num_row_programs,
    num_splits,
)
from mxconv.kernels.triton.steps.rebuilt_step import rebuilt_step


@triton.jit
def _rebuild(
    codes, low, high, starts, hits, firsts, split_firsts, words, out, first_program, num_rows,
    num_columns, row_tiles, column_tiles, NUM_PLANES: tl.constexpr, HAS_ROW_STARTS: tl.constexpr
):  # fmt: skip
    split = tl.program_id(1)
    program = first_program + tl.program_id(0)
    row = tl.arange(0, ROWS)[:, None]
    row_tile = tl.minimum(program * ROW_TILES + tl.arange(0, ROWS)[None, :] // 16, row_tiles - 1)
    first = tl.load(split_firsts + row_tile * tl.num_programs(1) + split)
    last_tile = tl.minimum((split + 1) * SPLIT_TILES, column_tiles)
    for first_tile in range(split * SPLIT_TILES, last_tile, STEP_TILES):
        patterns = rebuilt_step(
            codes, low, high, starts, hits, firsts, words + first, program, first_tile, row_tiles, column_tiles,
            NUM_PLANES, HAS_ROW_STARTS
        )  # fmt: skip
        column = first_tile * 8 + tl.arange(0, STEP)[None, :]
        row_of_out = tl.program_id(0) * ROWS + row
        place = row_of_out.to(tl.int64) * num_columns + column
        tl.store(out + place, patterns, mask=(row_of_out < num_rows) & (column < num_columns))


def rebuild(arrays: BsfpArrays, first_row: int = 0, num_rows: int | None = None) -> torch.Tensor:
    """Rows of the exact matrix.

    Args:
        arrays: on the device.
        first_row: a multiple of 64.
        num_rows: at most to the matrix's end; None for all that follow.

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
        NUM_PLANES=arrays.num_planes, HAS_ROW_STARTS=arrays.has_row_starts, num_warps=NUM_WARPS
    )  # fmt: skip
    return out.view(arrays.dtype)
