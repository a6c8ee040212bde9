"""4-bit matrices on a GPU: MXFP4 and the draft in BSFP, as numbers and times up to 16 tokens in BF16.

Levels are looked up by byte permutation, in registers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl

from mxconv.arrays import F32, U16
from mxconv.gpu.device_arrays import expert_of, row_tables, stacked, upload
from mxconv.gpu.instructions import (
    activations,
    in_order,
    lanes_above,
    lanes_of,
    multiply_bf16_pairs,
    patterns_of_nibbles,
    weights_of,
)
from mxconv.gpu.launch import (
    FREE,
    MAX_TOKENS,
    NUM_WARPS,
    OPERANDS,
    ROW_TILES,
    ROWS,
    SPLIT_TILES,
    STEP,
    STEP_TILES,
    RoutedPairs,
    SplitProduct,
    num_row_programs,
    num_splits,
    program_tokens,
    rows_of_places,
    store_sums,
)


@dataclass(frozen=True, eq=False)
class FourBitArrays:
    """What the 4-bit kernels read: T row tiles, C column tiles; the arrays of a stack are those of all E experts."""

    shape: tuple[int, int]  # of one matrix
    codes: torch.Tensor  # (T, C, 16) int32: a lane's nibbles
    levels: torch.Tensor  # (64 E, 4) int32: `row_tables` of the BF16 patterns of eight magnitudes
    scales: torch.Tensor  # (T, blocks, 16): uint8 E8M0, or int16 BF16 patterns

    @classmethod
    def of(cls, shape: tuple[int, int], codes: torch.Tensor, scales: torch.Tensor, magnitudes: F32) -> "FourBitArrays":
        """Arrays that are on the device, with (8,) levels.

        Levels that BF16 does not hold are rounded to it; no table of mxconv's has such.
        """
        return cls(shape, codes, upload(row_tables(level_patterns(magnitudes)), codes.device), scales)

    @classmethod
    def stacked(cls, experts: "Sequence[FourBitArrays]") -> "FourBitArrays":
        """Stack matrices of one shape and kind."""
        return stacked(experts)

    def expert(self, number: int, num_experts: int) -> "FourBitArrays":
        """View one matrix of a stack."""
        return expert_of(self, number, num_experts)

    @property
    def is_e8m0(self) -> bool:
        return self.scales.dtype == torch.uint8

    @property
    def num_bytes(self) -> int:
        """Bytes on the device, `codes` included."""
        return self.codes.nbytes + self.levels.nbytes + self.scales.nbytes


def level_patterns(magnitudes: F32) -> U16:
    """BF16 patterns of levels, rounded to nearest even."""
    patterns = torch.tensor(magnitudes, dtype=torch.float32).to(torch.bfloat16).view(torch.int16)
    return patterns.numpy().view(np.uint16)


def four_bit_product(arrays: FourBitArrays, x: torch.Tensor, routed: RoutedPairs | None = None) -> torch.Tensor:
    """x W^T, sums in float32.

    Args:
        arrays: W, on the device of `x`.
        x: (1..16 tokens, columns) bfloat16, contiguous; for a stack a row for each token, or for each pair.
        routed: the experts of each token, where W is a stack.

    Returns:
        (tokens, rows) float32, for a stack (pairs, rows). A row's bits depend on its row of `x` and its matrix.
    """
    launch = SplitProduct(x, arrays.shape, routed)
    _product[launch.grid](
        arrays.codes, arrays.levels, arrays.scales, x, *launch.arguments, len(arrays.codes) // launch.num_experts,
        arrays.codes.shape[1], arrays.scales.shape[1], IS_E8M0=arrays.is_e8m0, OPERAND=OPERANDS[torch.bfloat16],
        PER_ROW=launch.per_row, num_warps=NUM_WARPS
    )  # fmt: skip
    return launch.sums()


def dequantize(arrays: FourBitArrays, first_row: int = 0, num_rows: int | None = None) -> torch.Tensor:
    """Rows of the values of a 4-bit matrix.

    Args:
        arrays: on the device.
        first_row: a multiple of 64.
        num_rows: None for all rows up to the end.

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


@triton.jit(do_not_specialize=FREE)
def _product(
    codes, levels, scales, x, experts, pairs, places, partial, num_out, num_rows, num_columns, row_tiles,
    column_tiles, num_blocks, IS_E8M0: tl.constexpr, OPERAND: tl.constexpr, PER_ROW: tl.constexpr
):  # fmt: skip
    program, split = tl.program_id(0), tl.program_id(1)
    expert, row_of_x, row_of_out, is_there = program_tokens(experts, pairs, places, num_out, PER_ROW)
    sums = tl.zeros((ROWS, MAX_TOKENS), tl.float32)
    last_tile = tl.minimum((split + 1) * SPLIT_TILES, column_tiles)
    if PER_ROW > 0:
        codes += expert * row_tiles * column_tiles * 16
        scales += expert * row_tiles * num_blocks * 16
        levels += expert * (ROWS * 4)
        last_tile = tl.where(tl.max(is_there.to(tl.int32)) > 0, last_tile, 0)
    for first_tile in range(split * SPLIT_TILES, last_tile, STEP_TILES):
        patterns = _step(codes, levels, scales, program, first_tile, row_tiles, column_tiles, num_blocks, IS_E8M0)
        weights = weights_of(patterns, True, OPERAND)
        tokens = activations(x, row_of_x, is_there, first_tile * 8, STEP, num_columns, OPERAND)
        if IS_E8M0:
            sums = tl.dot(weights, tokens, sums, input_precision="ieee")
        else:
            products = tl.dot(weights, tokens, input_precision="ieee")
            sums += products * _row_scales(scales, program, first_tile // STEP_TILES, row_tiles, num_blocks)
    store_sums(partial, sums, row_of_out, is_there, num_out, num_rows)


@triton.jit(do_not_specialize=FREE)
def _dequantize(
    codes, levels, scales, out, first_program, num_rows, num_columns, row_tiles, column_tiles, num_blocks,
    IS_E8M0: tl.constexpr
):  # fmt: skip
    split = tl.program_id(1)
    program = first_program + tl.program_id(0)
    row = tl.program_id(0) * ROWS + rows_of_places()
    last_tile = tl.minimum((split + 1) * SPLIT_TILES, column_tiles)
    for first_tile in range(split * SPLIT_TILES, last_tile, STEP_TILES):
        patterns = _step(codes, levels, scales, program, first_tile, row_tiles, column_tiles, num_blocks, IS_E8M0)
        weights = weights_of(patterns, True, tl.float32)
        if not IS_E8M0:
            weights *= _row_scales(scales, program, first_tile // STEP_TILES, row_tiles, num_blocks)
        column = first_tile * 8 + tl.arange(0, STEP)[None, :]
        is_there = (row < num_rows) & (column < num_columns)
        tl.store(out + row.to(tl.int64) * num_columns + column, weights, mask=is_there)


@triton.jit
def _step(codes, table, scales, program, first_tile, row_tiles, column_tiles, num_blocks, IS_E8M0: tl.constexpr):
    """BF16 patterns of a program's rows and of 16 tiles along the columns; arrays as in `FourBitArrays`.

    Returns:
        (ROWS, STEP) int16: levels times scale with IS_E8M0, exactly; else the levels, to be scaled by `_row_scales`.
    """
    place = lanes_of(program, first_tile, row_tiles, column_tiles, STEP_TILES)
    tile = first_tile + tl.arange(0, STEP_TILES)[:, None]
    words = tl.load(codes + lanes_above(program, column_tiles) + place, mask=tile < column_tiles, other=0)
    entry = table + tl.arange(0, ROWS)[None, :] * 4
    pair0, pair1, pair2, pair3 = patterns_of_nibbles(
        words, tl.load(entry), tl.load(entry + 1), tl.load(entry + 2), tl.load(entry + 3)
    )
    if IS_E8M0:
        row = tl.arange(0, ROWS)[None, :]
        row_tile = tl.minimum(row // 16, row_tiles - 1 - program * ROW_TILES)
        places = tl.max_contiguous((row_tile * num_blocks + tile // 4) * 16 + row % 16, (1, 4))
        stored = tl.load(scales + lanes_above(program, num_blocks) + places, mask=tile < column_tiles, other=0)
        scale = _pairs_of_e8m0(stored)
        pair0, pair1 = multiply_bf16_pairs(pair0, scale), multiply_bf16_pairs(pair1, scale)
        pair2, pair3 = multiply_bf16_pairs(pair2, scale), multiply_bf16_pairs(pair3, scale)
    return in_order(pair0, pair1, pair2, pair3, STEP)


@triton.jit
def _pairs_of_e8m0(stored):
    """BF16 patterns in both halves of int32: 2^-127 is a subnormal, 255 a NaN."""
    stored = stored.to(tl.int32)
    return stored * 0x800080 + tl.where(((stored + 1) & 255) < 2, 0x400040, 0)


@triton.jit
def _row_scales(scales, program, block, row_tiles, num_blocks):
    """(ROWS, 1) float32 scales of a program's rows in one block of columns, in the order of `rows_of_places`.

    Stored are (T, blocks, 16) int16 patterns of BF16.
    """
    row = rows_of_places()
    row_tile = program * ROW_TILES + row // 16
    place = (row_tile.to(tl.int64) * num_blocks + block) * 16 + row % 16
    stored = tl.load(scales + place, mask=row_tile < row_tiles, other=0).to(tl.int32)
    return (stored << 16).to(tl.float32, bitcast=True)
