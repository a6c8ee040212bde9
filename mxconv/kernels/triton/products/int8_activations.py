"""Activations as int8, one scale for 32 of them: the scheme of formats/vnni8.md, bit for bit."""

import torch
import triton
import triton.language as tl

from mxconv.codecs.int8 import BLOCK as INT8_BLOCK

BLOCK = tl.constexpr(INT8_BLOCK)
BLOCKS = tl.constexpr(32)  # of a program
SMALLEST = tl.constexpr(2.0**-126)
ROUND = tl.constexpr(1.5 * 2.0**23)  # added and taken away, it leaves an integer: to nearest, half to even


@triton.jit
def _quantize(x, codes, scales, num_columns, num_blocks):
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


def quantize_int8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales of tokens; a block that holds a NaN or an infinity gets a scale that is NaN.

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
    # a product and a sum that were fused would round once, where the scheme rounds twice
    _quantize[grid](x, codes, scales, num_columns, num_blocks, enable_fp_fusion=False)
    return codes, scales
