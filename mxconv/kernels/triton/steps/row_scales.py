"""The scales of a program's rows in one block of columns."""

import triton
import triton.language as tl

from mxconv.kernels.triton.launch import ROW_TILES, ROWS


@triton.jit
def row_scales(scales, program, block, row_tiles, num_blocks, IS_E8M0: tl.constexpr):
    """(ROWS, 1) float32; those of E8M0 are halved: the levels beside them are doubled.

    Args:
        scales: (T, blocks, 16), uint8 E8M0 or int16 patterns of BF16.
        program: which 64 rows.
        block: which of the blocks.
        row_tiles: T.
        num_blocks: of `scales`.
        IS_E8M0: what `scales` are.
    """
    row = tl.arange(0, ROWS)[:, None]
    row_tile = program * ROW_TILES + row // 16
    place = (row_tile.to(tl.int64) * num_blocks + block) * 16 + row % 16
    stored = tl.load(scales + place, mask=row_tile < row_tiles, other=0).to(tl.int32)
    if not IS_E8M0:
        return (stored << 16).to(tl.float32, bitcast=True)
    # 2^(byte - 128): below 2^-126 a subnormal, of one bit
    bits = tl.where(stored > 1, (stored - 1) << 23, 0x200000 << tl.minimum(stored, 1))
    return tl.where(stored == 255, 0x7FC00000, bits).to(tl.float32, bitcast=True)
