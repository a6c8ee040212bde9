"""Exact BSFP weights in fragment order, rebuilt in registers where the matrix instruction wants them: one launch.

A program is one warp. It takes 16 rows and a split of the columns, 64 columns a step, and 1 to 16 tokens. Weights go from
memory to registers to `mma.m16n8k16`, never through shared memory; escapes go through one KB of it, a byte a weight,
zero but for the step's escapes. The last of a row tile's programs to finish adds the sums of all splits in ascending
order. Sums are cut by the matrix's shape alone, so a token's bits depend on the token and the matrix. The layout, and
what each step computes: fragments.py. Written in Gluon, Triton's language of layouts, which has no interpreter:
tests/gpu/test_fragments.py runs the compiled instructions on a CPU.
"""

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2

from mxconv.gpu.fragments import STEP_COLUMNS, FragmentArrays

TILE_ROWS = gl.constexpr(16)
STEP = gl.constexpr(STEP_COLUMNS)
FREE = ("num_steps", "num_tokens", "num_rows", "split_steps")  # numbers that kernels are not compiled anew for
_barrier = getattr(gl, "barrier", None) or gl.thread_barrier  # its name up to Triton 3.6

# A lane's words of the four k16 steps; lane 4 g + t has rows g and g + 8, and of each step's 16 columns its own four.
WORDS = gl.constexpr(gl.BlockedLayout([1, 4], [32, 1], [1, 1], [1, 0]))
LANES = gl.constexpr(gl.SliceLayout(1, WORDS.value))
TOKENS = gl.constexpr(gl.BlockedLayout([1, 16], [8, 4], [1, 1], [1, 0]))
SUMS = gl.constexpr(gl.NVMMADistributedLayout(version=[2, 0], warps_per_cta=[1, 1], instr_shape=[16, 8]))
LEFT = gl.constexpr(gl.DotOperandLayout(0, SUMS.value, 2))
RIGHT = gl.constexpr(gl.DotOperandLayout(1, SUMS.value, 2))

# Two weights a register: low and high bytes of the starts by code, the high bytes patched, their bytes interleaved, the
# residuals added, bit 15 of both replaced by the sign. 0xE2 is `b ? a : c`, bit by bit.
DECODE = gl.constexpr("""{
.reg .b32 c, d, la, ha, lb, hb, p, q, s;
and.b32 c, $4, 0x77777777;
shr.u32 d, c, 16;
prmt.b32 la, $9, $10, c;
prmt.b32 ha, $11, $12, c;
prmt.b32 lb, $13, $14, d;
prmt.b32 hb, $15, $16, d;
xor.b32 ha, ha, $7;
xor.b32 hb, hb, $8;
prmt.b32 p, la, ha, 0x5140;
prmt.b32 q, $5, 0, 0x4140;
add.u32 p, p, q;
lop3.b32 $0, $4, 0x80008000, p, 0xE2;
prmt.b32 p, lb, hb, 0x5140;
prmt.b32 q, $6, 0, 0x4140;
add.u32 p, p, q;
shl.b32 s, $4, 4;
lop3.b32 $1, s, 0x80008000, p, 0xE2;
prmt.b32 p, la, ha, 0x7362;
prmt.b32 q, $5, 0, 0x4342;
add.u32 p, p, q;
shl.b32 s, $4, 8;
lop3.b32 $2, s, 0x80008000, p, 0xE2;
prmt.b32 p, lb, hb, 0x7362;
prmt.b32 q, $6, 0, 0x4342;
add.u32 p, p, q;
shl.b32 s, $4, 12;
lop3.b32 $3, s, 0x80008000, p, 0xE2;
}""")
DECODE_OPERANDS = gl.constexpr("=r,=r,=r,=r" + 13 * ",r")

# A byte for each of 16 x 64 weights, and 16 bytes into which lanes without an escape write.
DECLARE = gl.constexpr(".shared .align 16 .b8 mxconv_patches[1040];\nmov.u32 $0, mxconv_patches;")
PATCH = gl.constexpr("st.shared.u8 [$1], $2;\nmov.u32 $0, 0;")
SYNC = gl.constexpr("bar.warp.sync 0xffffffff;\nmov.u32 $0, 0;")
# Each lane takes its 32 bytes and leaves zeros.
TAKE = gl.constexpr("""bar.warp.sync 0xffffffff;
ld.shared.v4.b32 {$0, $1, $2, $3}, [$8];
ld.shared.v4.b32 {$4, $5, $6, $7}, [$8+512];
st.shared.v4.b32 [$8], {$12, $12, $12, $12};
st.shared.v4.b32 [$8+512], {$12, $12, $12, $12};
bar.warp.sync 0xffffffff;""")


@gluon.jit
def declare_patches():
    """The address of the warp's patches in shared memory, for each lane: (32,) int32."""
    lane = gl.arange(0, 32, layout=LANES)
    return gl.inline_asm_elementwise(DECLARE, "=r,r", [lane], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def take_patches(patches):
    """The patches of a lane's weights, and zeros in their place: two of (32, 4) int32, of rows g and g + 8."""
    own = (patches + gl.arange(0, 32, layout=LANES) * 16)[:, None] + gl.zeros([32, 4], gl.int32, WORDS)
    return gl.inline_asm_elementwise(
        TAKE, "=r,=r,=r,=r,=r,=r,=r,=r,r,r,r,r,r,r,r,r", [own, gl.zeros([32, 4], gl.int32, WORDS)],
        dtype=(gl.int32, gl.int32), is_pure=False, pack=4
    )  # fmt: skip


@gluon.jit
def load_escapes(escapes, first, last):
    """The escape of each lane, of those from `first` up to `last`: (32,) int32, zeros beyond."""
    index = first + gl.arange(0, 32, layout=LANES)
    return gl.load(escapes + index, mask=index < last, other=0).to(gl.int32) & 0xFFFF


@gluon.jit
def put_patches(patches, escapes, entry, first, middle, last):
    """Write a step's escapes, `first` up to `last`; from `middle` on they are of rows 8 to 15.

    Args:
        entry: the first 32, as `load_escapes` returns them.
    """
    _put(patches, entry, first, middle, last)
    for some in range(first + 32, last, 32):  # hardly ever; a barrier keeps it short, since it is not unrolled with one
        gl.inline_asm_elementwise(SYNC, "=r,r", [patches], dtype=gl.int32, is_pure=False, pack=1)
        _put(patches, load_escapes(escapes, some, last), some, middle, last)


@gluon.jit
def _put(patches, entry, first, middle, last):
    index = first + gl.arange(0, 32, layout=LANES)
    place = gl.where(index < last, (entry & 511) + gl.where(index < middle, 0, 512), 1024)
    gl.inline_asm_elementwise(PATCH, "=r,r,r", [patches + place, entry >> 9], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def row_table(starts, row_tile):
    """Byte tables of a lane's rows: eight of (32, 1) int32, four of row g and four of row g + 8."""
    row = row_tile * 16 + gl.arange(0, 32, layout=LANES) // 4
    table = starts + row * 4
    return (
        gl.load(table)[:, None], gl.load(table + 1)[:, None], gl.load(table + 2)[:, None], gl.load(table + 3)[:, None],
        gl.load(table + 32)[:, None], gl.load(table + 33)[:, None], gl.load(table + 34)[:, None],
        gl.load(table + 35)[:, None]
    )  # fmt: skip


@gluon.jit
def words_of(words, step, WORDS_A_STEP: gl.constexpr):
    """Pointers to a lane's first four words of a step: (32, 4)."""
    word = gl.arange(0, 32, layout=LANES)[:, None] * 4 + gl.arange(0, 4, layout=gl.SliceLayout(0, WORDS))[None, :]
    return words + step * WORDS_A_STEP + word


@gluon.jit
def load_step(codes, residuals):
    """Nibbles, and the low bytes of residuals of rows g and of rows g + 8: three of (32, 4) int32."""
    nibbles = gl.load(codes, cache_modifier=".cg")
    return nibbles, gl.load(residuals, cache_modifier=".cg"), gl.load(residuals + 128, cache_modifier=".cg")


@gluon.jit
def weights_of(loaded, table, patches):
    """Patterns of 16 x 64 weights: (32, 4, 2, 2, 2) int16, by lane, k16 step, half of its rows, half of its columns, weight.

    Args:
        loaded: what `load_step` returns.
        table: what `row_table` returns.
        patches: with the step's escapes; zeros afterwards.
    """
    nibbles, upper, lower = loaded
    upper_patches, lower_patches = take_patches(patches)
    t0, t1, t2, t3, t4, t5, t6, t7 = table
    p0, p1, p2, p3 = gl.inline_asm_elementwise(
        DECODE, DECODE_OPERANDS,
        [nibbles, upper, lower, upper_patches, lower_patches, t0, t1, t2, t3, t4, t5, t6, t7],
        dtype=(gl.int32, gl.int32, gl.int32, gl.int32), is_pure=True, pack=1
    )  # fmt: skip
    pairs = gl.join(gl.join(p0, p1), gl.join(p2, p3))
    return gl.join(pairs.to(gl.int16), (pairs >> 16).to(gl.int16))


@gluon.jit(do_not_specialize=FREE)
def product(
    codes, residuals, starts, escapes, firsts, x, partial, out, counters, num_steps, split_steps, num_tokens, num_rows,
    num_columns, TOKENS_AT_MOST: gl.constexpr
):  # fmt: skip
    """x W^T of a row tile and a split of the columns; arrays as in `FragmentArrays`, grid (row tiles, splits)."""
    row_tile, split, num_splits = gl.program_id(0), gl.program_id(1), gl.num_programs(1)
    table = row_table(starts, row_tile)
    patches = declare_patches()
    take_patches(patches)  # for the zeros
    token = gl.arange(0, TOKENS_AT_MOST, layout=gl.SliceLayout(1, TOKENS))[:, None]
    activations = x + token * num_columns + gl.arange(0, STEP, layout=gl.SliceLayout(0, TOKENS))[None, :]
    sums = gl.zeros([TILE_ROWS, TOKENS_AT_MOST], gl.float32, SUMS)
    begin = row_tile * num_steps + split * split_steps
    end = gl.minimum(begin + split_steps, (row_tile + 1) * num_steps)
    activations += split * split_steps * STEP
    codes, residuals = words_of(codes, begin, 128), words_of(residuals, begin, 256)
    firsts += begin * 2
    first, middle, last = gl.load(firsts), gl.load(firsts + 1), gl.load(firsts + 2)
    for _ in range(begin, end):
        loaded = load_step(codes, residuals)
        some = gl.load(activations, mask=token < num_tokens, other=0)
        entry = load_escapes(escapes, first, last)
        next_middle, next_last = gl.load(firsts + 3), gl.load(firsts + 4)
        put_patches(patches, escapes, entry, first, middle, last)
        first, middle, last = last, next_middle, next_last
        activations += STEP
        codes += 128
        residuals += 256
        firsts += 2
        # (g, t, step, row half, column half, weight) to (row half, g, step, column half, t, weight)
        left = weights_of(loaded, table, patches).reshape([8, 4, 4, 2, 2, 2])
        left = left.permute([3, 0, 2, 4, 1, 5]).reshape([TILE_ROWS, STEP]).to(gl.bfloat16, bitcast=True)
        # (token, t, step, column half, weight), of which lane 4 token + t has its own, to the same order
        right = some.reshape([TOKENS_AT_MOST, 4, 4, 2, 2]).permute([2, 3, 1, 4, 0]).reshape([STEP, TOKENS_AT_MOST])
        sums = mma_v2(
            gl.convert_layout(left, LEFT, assert_trivial=True), gl.convert_layout(right, RIGHT, assert_trivial=True), sums
        )
    row = row_tile * TILE_ROWS + gl.arange(0, TILE_ROWS, layout=gl.SliceLayout(1, SUMS))[:, None]
    column = gl.arange(0, TOKENS_AT_MOST, layout=gl.SliceLayout(0, SUMS))[None, :]
    place = column * num_rows + row
    is_there = (row < num_rows) & (column < num_tokens)
    if num_splits == 1:
        gl.store(out + place, sums, mask=is_there)
    else:
        gl.store(partial + split * num_tokens * num_rows + place, sums, mask=is_there)
        _barrier()
        if gl.atomic_add(counters + row_tile, 1, sem="acq_rel") == num_splits - 1:
            _barrier()
            total = gl.load(partial + place, mask=is_there, other=0, cache_modifier=".cg")
            for each in range(1, num_splits):
                total += gl.load(
                    partial + each * num_tokens * num_rows + place, mask=is_there, other=0, cache_modifier=".cg"
                )
            gl.store(out + place, total, mask=is_there)
            gl.store(counters + row_tile, 0)


@gluon.jit(do_not_specialize=FREE)
def rebuild_steps(
    codes, residuals, starts, escapes, firsts, out, num_steps, split_steps, first_tile, num_rows, num_columns
):  # fmt: skip
    """Patterns of a row tile and a split, row by row to (num_rows, num_columns) int16; grid (row tiles, splits)."""
    row_tile, begin = first_tile + gl.program_id(0), gl.program_id(1) * split_steps
    table = row_table(starts, row_tile)
    patches = declare_patches()
    take_patches(patches)
    layout: gl.constexpr = gl.BlockedLayout([1, 16], [8, 4], [1, 1], [1, 0])  # the lanes' own, rows 8 apart
    row = gl.program_id(0) * TILE_ROWS + gl.arange(0, TILE_ROWS, layout=gl.SliceLayout(1, layout))[:, None]
    for number in range(begin, gl.minimum(begin + split_steps, num_steps)):
        step = row_tile * num_steps + number
        loaded = load_step(words_of(codes, step, 128), words_of(residuals, step, 256))
        first, middle, last = gl.load(firsts + step * 2), gl.load(firsts + step * 2 + 1), gl.load(firsts + step * 2 + 2)
        put_patches(patches, escapes, load_escapes(escapes, first, last), first, middle, last)
        # (g, t, step, row half, column half, weight) to (row half, g, t, step, column half, weight)
        tile = weights_of(loaded, table, patches).reshape([8, 4, 4, 2, 2, 2])
        tile = gl.convert_layout(tile.permute([3, 0, 1, 2, 4, 5]).reshape([TILE_ROWS, STEP]), layout, assert_trivial=True)
        column = number * STEP + gl.arange(0, STEP, layout=gl.SliceLayout(0, layout))[None, :]
        is_there = (row < num_rows) & (column < num_columns)
        gl.store(out + row.to(gl.int64) * num_columns + column, tile, mask=is_there)
