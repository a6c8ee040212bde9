"""How the kernels cut a matrix into programs: by its shape alone, so that sums have one order on every GPU.

A program takes 64 rows (four row tiles) and a split of 1024 columns, in steps of 128 columns. Tokens are always 16 in a
program, absent ones being zeros: a token's sums are the same instructions whatever is beside it. The sums of the splits
are added in ascending order by a kernel of their own.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
import triton
import triton.language as tl

from mxconv.codecs.vnni8 import TILE_COLUMNS, TILE_ROWS

MAX_TOKENS = tl.constexpr(16)  # of a product by kernels; the least that tensor cores take
ROWS = tl.constexpr(64)  # of a program: those of a warp group's matrix instruction
STEP = tl.constexpr(128)  # columns of a step: a group of BSFP scales
SPLIT = tl.constexpr(1024)  # columns of a program
ROW_TILES = tl.constexpr(ROWS.value // TILE_ROWS)
STEP_TILES = tl.constexpr(STEP.value // TILE_COLUMNS)
SPLIT_TILES = tl.constexpr(SPLIT.value // TILE_COLUMNS)
NUM_WARPS = 4

# The interpreter multiplies BF16 operands as if their patterns were integers; it gets them as float32, which is exact.
IS_INTERPRETED: bool = triton.knobs.runtime.interpret
OPERANDS = {
    torch.bfloat16: tl.float32 if IS_INTERPRETED else tl.bfloat16,
    torch.float16: tl.float32 if IS_INTERPRETED else tl.float16,
}


def on(device: torch.device) -> AbstractContextManager[None]:
    """Launches go to the current GPU: make it this one."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def num_splits(num_columns: int) -> int:
    """Programs side by side along the columns."""
    return -(-num_columns // int(SPLIT.value))


def num_row_programs(num_rows: int) -> int:
    """Programs one below the other."""
    return -(-num_rows // int(ROWS.value))
