"""Up to 16 tokens in int8 times a 4-bit matrix with integer levels: exact integers a block of 32, then both scales.

Late scaling, ML-SpecQD §III-D (arXiv 2503.13565), as the CPU's kernels do it: with at most 1024 columns the sums are
those of the NumPy reference, bit for bit; with more they are the sums of splits, added in order. Activations are
rounded as formats/vnni8.md says, bit for bit.
"""

import torch
import triton
import triton.language as tl

from mxconv.codecs.int8 import BLOCK as INT8_BLOCK
from mxconv.gpu.four_bit_product import FourBitArrays, row_scales
from mxconv.gpu.instructions import permute_bytes
from mxconv.gpu.lanes import NEGATIVE_BYTES, lanes_above, lanes_of
from mxconv.gpu.launch import (
    FREE,
    MAX_TOKENS,
    NUM_WARPS,
    ROWS,
    SPLIT,
    RoutedPairs,
    SplitProduct,
    program_tokens,
    store_sums,
)

BLOCK = tl.constexpr(INT8_BLOCK)
BLOCKS = tl.constexpr(32)  # of a program that rounds activations
SMALLEST = tl.constexpr(2.0**-126)
ROUND = tl.constexpr(1.5 * 2.0**23)  # added and subtracted, it leaves the nearest integer, half to even
_TILES = tl.constexpr(BLOCK.value // 8)


def int8_product(arrays: FourBitArrays, x: torch.Tensor, routed: RoutedPairs | None = None) -> torch.Tensor:
    """x W^T with `x` rounded to int8; a token that is not finite becomes NaN.

    Args:
        arrays: W with integer levels, on the device of `x`.
        x: (1..16 tokens, columns) of a float type, contiguous; for a stack a row for each token, or for each pair.
        routed: the experts of each token, where W is a stack.

    Returns:
        As `four_bit_product`.
    """
    assert arrays.int8_levels is not None
    x_codes, x_scales = int8_activations(x)
    launch = SplitProduct(x, arrays.shape, routed)
    _product[launch.grid](
        arrays.codes, arrays.int8_levels, arrays.scales, x_codes, x_scales, *launch.arguments,
        len(arrays.codes) // launch.num_experts, arrays.codes.shape[1], arrays.scales.shape[1], x_scales.shape[1],
        SCALE_BLOCK=arrays.scale_block, IS_E8M0=arrays.is_e8m0, PER_ROW=launch.per_row, num_warps=NUM_WARPS,
        enable_fp_fusion=False
    )  # fmt: skip
    return launch.sums()


def int8_activations(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round tokens to int8 codes with a scale for each 32; a block with a NaN or an infinity gets a NaN for its scale.

    Args:
        x: (tokens, columns) of any float type that float32 holds, contiguous.

    Returns:
        (tokens, 32 blocks) int8, zero-padded, and (tokens, blocks) float32.
    """
    num_tokens, num_columns = x.shape
    num_blocks = -(-num_columns // INT8_BLOCK)
    codes = torch.empty((num_tokens, num_blocks * INT8_BLOCK), dtype=torch.int8, device=x.device)
    scales = torch.empty((num_tokens, num_blocks), dtype=torch.float32, device=x.device)
    grid = (num_tokens, -(-num_blocks // BLOCKS.value))
    # a fused product and sum would round once, where the scheme rounds twice
    _round[grid](x, codes, scales, num_columns, num_blocks, enable_fp_fusion=False)
    return codes, scales


@triton.jit
def _round(x, codes, scales, num_columns, num_blocks):
    token = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1) * BLOCKS + tl.arange(0, BLOCKS)
    column = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    a = tl.load(x + token * num_columns + column, mask=column < num_columns, other=0).to(tl.float32)
    is_finite = tl.min((tl.abs(a) < float("inf")).to(tl.int32), axis=1) == 1
    a = tl.where(is_finite[:, None], a, 0.0)
    scale = tl.div_rn(tl.max(tl.abs(a), axis=1), tl.full((BLOCKS,), 127.0, tl.float32))
    is_usable = scale >= SMALLEST
    inverse = tl.where(is_usable, tl.div_rn(tl.full((BLOCKS,), 1.0, tl.float32), tl.where(is_usable, scale, 1.0)), 0.0)
    rounded = a * inverse[:, None] + ROUND - ROUND
    code = tl.minimum(tl.maximum(rounded, -127.0), 127.0).to(tl.int8)
    is_there = block < num_blocks
    tl.store(codes + token * num_blocks * BLOCK + column, code, mask=is_there[:, None])
    scale = tl.where(is_finite, tl.where(is_usable, scale, 0.0), float("nan"))
    tl.store(scales + token * num_blocks + block, scale, mask=is_there)


@triton.jit(do_not_specialize=[*FREE, "num_x_blocks"])
def _product(
    codes, levels, scales, x, x_scales, experts, pairs, places, partial, num_out, num_rows, num_columns, row_tiles,
    column_tiles, num_blocks, num_x_blocks, SCALE_BLOCK: tl.constexpr, IS_E8M0: tl.constexpr, PER_ROW: tl.constexpr
):  # fmt: skip
    program, split = tl.program_id(0), tl.program_id(1)
    expert, row_of_x, row_of_out, is_there = program_tokens(experts, pairs, places, num_out, PER_ROW)
    sums = tl.zeros((ROWS, MAX_TOKENS), tl.float32)
    last = tl.minimum((split + 1) * SPLIT, num_columns)
    if PER_ROW > 0:
        codes += expert * row_tiles * column_tiles * 16
        scales += expert * row_tiles * num_blocks * 16
        levels += expert * 4
        last = tl.where(tl.max(is_there.to(tl.int32)) > 0, last, 0)
    for first in range(split * SPLIT, last, BLOCK):
        weights = _block(codes, levels, program, first // 8, row_tiles, column_tiles)
        column = first + tl.arange(0, BLOCK)[:, None]
        place = row_of_x * (num_x_blocks * BLOCK) + column
        tokens = tl.load(x + place, mask=is_there & (column >= 0), other=0)
        integers = tl.dot(weights, tokens, out_dtype=tl.int32)
        x_scale = tl.load(x_scales + row_of_x * num_x_blocks + first // BLOCK, mask=is_there, other=0)
        scale = row_scales(scales, program, first // SCALE_BLOCK, row_tiles, num_blocks, IS_E8M0)
        sums += integers.to(tl.float32) * x_scale * scale
    store_sums(partial, sums, row_of_out, is_there, num_out, num_rows)


@triton.jit
def _block(codes, table, program, first_tile, row_tiles, column_tiles):
    """(ROWS, BLOCK) int8 levels of a program's rows and of four tiles along the columns, a multiple of which there are.

    `codes` and `table` are `FourBitArrays.codes` and `int8_levels`. Rows come in the order of `rows_of_places`.
    """
    place = lanes_of(program, first_tile, row_tiles, column_tiles, _TILES)
    words = tl.load(codes + lanes_above(program, column_tiles) + place)
    columns04, columns26 = _levels(words, table), _levels(words >> 16, table)  # 0, 4, 1, 5 and 2, 6, 3, 7
    first, second = permute_bytes(columns04, columns26, 0x6420), permute_bytes(columns04, columns26, 0x7531)
    halves = tl.join(first, second)
    even = tl.join(halves.to(tl.int8), (halves >> 16).to(tl.int8))
    odd = tl.join((halves >> 8).to(tl.int8), (halves >> 24).to(tl.int8))
    apart = tl.reshape(tl.join(even, odd), (_TILES, ROWS // 4, 4, 2, 2, 2))
    return tl.reshape(tl.permute(apart, (2, 1, 0, 3, 4, 5)), (ROWS, BLOCK))


@triton.jit
def _levels(words, table):
    """Look up four bytes in a table of sixteen, by the four low nibbles."""
    codes = words & 0x7777
    positive = permute_bytes(tl.load(table), tl.load(table + 1), codes)
    negative = permute_bytes(tl.load(table + 2), tl.load(table + 3), codes)
    signs = permute_bytes(NEGATIVE_BYTES, NEGATIVE_BYTES, words)  # bytes of 0xFF, or 0x80 where there is no sign
    is_negative = (signs & 0x01010101) * 255
    return (positive & ~is_negative) | (negative & is_negative)
