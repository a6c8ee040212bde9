"""From stored bytes to 16-bit patterns in the registers where the matrix instruction wants them: one warp, one step.

The layout, and what the instructions compute: fragments.py. They are those of NVIDIA's PTX ISA. Written in Gluon,
Triton's language of layouts; tests/gpu/test_fragments.py runs what it compiles to on a CPU.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

# A lane's words of the four k16 steps; lane 4 g + t has rows g and g + 8, and of each step's 16 columns its own four.
WORDS = gl.constexpr(gl.BlockedLayout([1, 4], [32, 1], [1, 1], [1, 0]))
LANES = gl.constexpr(gl.SliceLayout(1, WORDS.value))
TOKENS = gl.constexpr(gl.BlockedLayout([1, 8], [8, 4], [1, 1], [1, 0]))

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
DECODE_OPERANDS = gl.constexpr("=&r,=&r,=&r,=&r" + 13 * ",r")

# The same of levels, from one table for all rows.
DRAFT = gl.constexpr("""{
.reg .b32 c, d, l, h, s;
and.b32 c, $4, 0x77777777;
shr.u32 d, c, 16;
prmt.b32 l, $5, $6, c;
prmt.b32 h, $7, $8, c;
prmt.b32 $0, l, h, 0x5140;
lop3.b32 $0, $4, 0x80008000, $0, 0xE2;
prmt.b32 $2, l, h, 0x7362;
shl.b32 s, $4, 8;
lop3.b32 $2, s, 0x80008000, $2, 0xE2;
prmt.b32 l, $5, $6, d;
prmt.b32 h, $7, $8, d;
prmt.b32 $1, l, h, 0x5140;
shl.b32 s, $4, 4;
lop3.b32 $1, s, 0x80008000, $1, 0xE2;
prmt.b32 $3, l, h, 0x7362;
shl.b32 s, $4, 12;
lop3.b32 $3, s, 0x80008000, $3, 0xE2;
}""")
DRAFT_OPERANDS = gl.constexpr("=&r,=&r,=&r,=&r" + 5 * ",r")

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
        TAKE, "=&r,=&r,=&r,=&r,=&r,=&r,=&r,=&r,r,r,r,r,r,r,r,r", [own, gl.zeros([32, 4], gl.int32, WORDS)],
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
    return words + step.to(gl.int64) * WORDS_A_STEP + word


@gluon.jit
def load_step(codes, residuals):
    """Nibbles, and the low bytes of residuals of rows g and of rows g + 8: three of (32, 4) int32."""
    nibbles = gl.load(codes, cache_modifier=".cg")
    return nibbles, gl.load(residuals, cache_modifier=".cg"), gl.load(residuals + 128, cache_modifier=".cg")


@gluon.jit
def weights_of(loaded, table, patches, planes, NUM_PLANES: gl.constexpr):
    """Patterns of 16 x 64 weights: (32, 4, 2, 2, 2) int16.

    Axes are the lane, the k16 step, the half of its rows, the half of its columns, and the weight of a pair.

    Args:
        loaded: what `load_step` returns.
        table: what `row_table` returns.
        patches: with the step's escapes; zeros afterwards.
        planes: pointers to a lane's four bytes of the first bit plane beyond eight; None where there is none.
        NUM_PLANES: bit planes, 128 bytes apart.
    """
    nibbles, upper, lower = loaded
    upper_patches, lower_patches = take_patches(patches)
    t0, t1, t2, t3, t4, t5, t6, t7 = table
    p0, p1, p2, p3 = gl.inline_asm_elementwise(
        DECODE, DECODE_OPERANDS,
        [nibbles, upper, lower, upper_patches, lower_patches, t0, t1, t2, t3, t4, t5, t6, t7],
        dtype=(gl.int32, gl.int32, gl.int32, gl.int32), is_pure=True, pack=1
    )  # fmt: skip
    for plane in gl.static_range(NUM_PLANES):  # a magnitude leaves room for its residual, so no sum reaches a sign
        both = gl.load(planes + plane * 128, cache_modifier=".cg").to(gl.int32) * 0x1001
        p0 += (both << (8 + plane)) & (0x1000100 << plane)
        p1 += (both << (7 + plane)) & (0x1000100 << plane)
        p2 += (both << (6 + plane)) & (0x1000100 << plane)
        p3 += (both << (5 + plane)) & (0x1000100 << plane)
    return halves_of(p0, p1, p2, p3)


@gluon.jit
def draft_weights_of(nibbles, levels):
    """Patterns of the levels of 16 x 64 weights, as `weights_of`; `levels` as in `FragmentDraft`."""
    p0, p1, p2, p3 = gl.inline_asm_elementwise(
        DRAFT, DRAFT_OPERANDS,
        [nibbles, gl.load(levels), gl.load(levels + 1), gl.load(levels + 2), gl.load(levels + 3)],
        dtype=(gl.int32, gl.int32, gl.int32, gl.int32), is_pure=True, pack=1
    )  # fmt: skip
    return halves_of(p0, p1, p2, p3)


@gluon.jit
def halves_of(p0, p1, p2, p3):
    pairs = gl.join(gl.join(p0, p1), gl.join(p2, p3))
    return gl.join(pairs.to(gl.int16), (pairs >> 16).to(gl.int16))
