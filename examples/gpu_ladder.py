"""Where the time of the exact product on a GPU goes: its kernel built up part by part, each part timed.

    python examples/gpu_ladder.py --rows 8192 --columns 8192 --tokens 1

reader       reads every byte of the weights but the escapes, and keeps the XOR of its words
decode       makes patterns of them, and keeps theirs
product      multiplies them with the tokens
escapes      patches escapes
sums         the last program of a row tile adds those of all splits: the kernel that is used
ahead        the words of the next step are loaded before this one's are used
dependent    the same, launched while the kernel before it still runs; its activations wait (compute capability 9.0)

Weights rotate beyond the L2 cache, a figure is the mean of a launch in a replayed graph, and torch's product of the
same matrix in BF16 is measured in the same rounds. The rung at which "times torch" falls is the one to look at.
"""

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

import torch
import typer
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_wait

from mxconv.bench.gpu_kernel_speed import CACHE_MULTIPLE, MIN_LAUNCHES, make_gpu_operand, seconds_of_launches
from mxconv.bench.rates import spread
from mxconv.errors import MxconvError
from mxconv.gpu import fragment_product as of_product
from mxconv.gpu.fragment_product import FREE, STEP, SUMS, TILE_ROWS, activations_of, cut, multiply, steps_of, store_sums
from mxconv.gpu.fragment_weights import (
    DECODE,
    DECODE_OPERANDS,
    WORDS,
    declare_patches,
    halves_of,
    load_escapes,
    load_step,
    put_patches,
    row_table,
    take_patches,
    weights_of,
    words_of,
)
from mxconv.gpu.fragments import FragmentArrays
from mxconv.gpu.launch import MAX_TOKENS

RUNGS = ("reader", "decode", "product", "escapes", "sums", "ahead", "dependent")
DECODED, PRODUCT, ESCAPES, SUMMED, AHEAD, DEPENDENT = (gl.constexpr(number) for number in range(1, len(RUNGS)))


@gluon.jit
def pairs_without_escapes(loaded, table):
    """Patterns of 16 x 64 weights as if nothing escaped: four of (32, 4) int32."""
    nibbles, upper, lower = loaded
    none = gl.zeros([32, 4], gl.int32, WORDS)
    t0, t1, t2, t3, t4, t5, t6, t7 = table
    return gl.inline_asm_elementwise(
        DECODE, DECODE_OPERANDS, [nibbles, upper, lower, none, none, t0, t1, t2, t3, t4, t5, t6, t7],
        dtype=(gl.int32, gl.int32, gl.int32, gl.int32), is_pure=True, pack=1
    )  # fmt: skip


@gluon.jit(do_not_specialize=FREE)
def ladder(
    codes, residuals, starts, escapes, firsts, x, words, partial, out, counters, num_steps, split_steps, num_out,
    num_rows, num_columns, TOKENS_AT_MOST: gl.constexpr, RUNG: gl.constexpr
):  # fmt: skip
    """As `fragment_product.product` of one matrix, up to a rung.

    The first two write four words a lane to `words`; the next two leave the sums of splits alone.
    """
    expert, row_tile, first_step, begin, end = steps_of(None, num_steps, split_steps)
    table, patches = row_table(starts, row_tile), declare_patches()
    if RUNG >= ESCAPES:
        take_patches(patches)  # for the zeros
    activations, is_there = activations_of(x, (None, None, 0), first_step, num_out, num_columns, TOKENS_AT_MOST)
    codes, residuals = words_of(codes, begin, 128), words_of(residuals, begin, 256)
    firsts += begin * 2
    first, middle, last = gl.load(firsts), gl.load(firsts + 1), gl.load(firsts + 2)
    sums = gl.zeros([TILE_ROWS, TOKENS_AT_MOST], gl.float32, SUMS)
    kept = gl.zeros([32, 4], gl.int32, WORDS)
    ahead = load_step(codes, residuals)
    if RUNG == DEPENDENT:
        gdc_wait()
    for step in range(begin, end):
        loaded = ahead
        if RUNG < AHEAD:
            loaded = load_step(codes, residuals)
        else:
            is_last = step + 1 == end
            ahead = load_step(codes + gl.where(is_last, 0, 128), residuals + gl.where(is_last, 0, 256))
        codes += 128
        residuals += 256
        if RUNG >= ESCAPES:
            entry = load_escapes(escapes, first, last)
            next_middle, next_last = gl.load(firsts + 3), gl.load(firsts + 4)
            put_patches(patches, escapes, entry, first, middle, last)
            first, middle, last = last, next_middle, next_last
            firsts += 2
        if RUNG < DECODED:
            nibbles, upper, lower = loaded
            kept ^= nibbles ^ upper ^ lower
        elif RUNG < ESCAPES:
            p0, p1, p2, p3 = pairs_without_escapes(loaded, table)
            if RUNG < PRODUCT:
                kept ^= p0 ^ p1 ^ p2 ^ p3
            else:
                sums = multiply(halves_of(p0, p1, p2, p3), gl.load(activations, mask=is_there, other=0), sums)
        else:
            tokens = gl.load(activations, mask=is_there, other=0)
            sums = multiply(weights_of(loaded, table, patches, None, 0), tokens, sums)
        activations += STEP
    split = gl.program_id(1)
    if RUNG < PRODUCT:
        gl.store(words_of(words, split * gl.num_programs(0) + row_tile, 128), kept)
    elif RUNG < SUMMED:
        row = row_tile * TILE_ROWS + gl.arange(0, TILE_ROWS, layout=gl.SliceLayout(1, SUMS))[:, None]
        token = gl.arange(0, TOKENS_AT_MOST, layout=gl.SliceLayout(0, SUMS))[None, :]
        place = (split * num_out + token) * num_rows + row
        gl.store(partial + place, sums, mask=(row < num_rows) & (token < num_out))
    else:
        store_sums(sums, (None, None, 0), partial, out, counters, expert, num_out, num_rows, TOKENS_AT_MOST)


def climb(rung: str, arrays: FragmentArrays, x: torch.Tensor) -> torch.Tensor:
    """Run the kernel up to a rung.

    Args:
        rung: of `RUNGS`.
        arrays: the matrix, on the device of `x`.
        x: (1..16 tokens, columns) bfloat16, contiguous, columns a multiple of 128.

    Returns:
        (splits, row tiles, 32, 4) int32 of the first two rungs, (splits, tokens, rows) float32 of the next two, then
        the product, (tokens, rows) float32.
    """
    (row_tiles, num_steps), rows, number = arrays.codes.shape[:2], arrays.shape[0], RUNGS.index(rung)
    splits, split_steps = cut(row_tiles, num_steps)
    words = torch.empty((splits, row_tiles, 32, 4), dtype=torch.int32, device=x.device)
    partial = torch.empty((splits, len(x), rows), dtype=torch.float32, device=x.device)
    out = torch.empty((len(x), rows), dtype=torch.float32, device=x.device)
    options: dict[str, Any] = {"launch_pdl": True} if rung == "dependent" else {}
    of_product.launch(
        ladder, (row_tiles, splits), arrays.codes, arrays.residuals, arrays.starts, arrays.escapes, arrays.firsts, x,
        words, partial, out, arrays.counters, num_steps, split_steps, len(x), rows, x.shape[1],
        TOKENS_AT_MOST=8 if len(x) <= 8 else 16, RUNG=number, **options
    )  # fmt: skip
    return words if number < PRODUCT.value else partial if number < SUMMED.value else out


def check(arrays: FragmentArrays, x: torch.Tensor, rungs: Sequence[str]) -> None:
    """Require the product's own bits of the rungs that make products.

    Raises:
        MxconvError: other bits.
    """
    expected = of_product.fragment_product(arrays, x)
    for rung in rungs:
        if RUNGS.index(rung) >= SUMMED.value and not climb(rung, arrays, x).equal(expected):
            raise MxconvError(f"{rung}: other bits than the product; the same are required. Please report this.")


def main(
    rows: Annotated[int, typer.Option(min=16, help="Of the matrix.")] = 8192,
    columns: Annotated[int, typer.Option(min=128, help="Of the matrix, a multiple of 128.")] = 8192,
    tokens: Annotated[int, typer.Option(min=1, max=int(MAX_TOKENS.value))] = 1,
    rounds: Annotated[int, typer.Option(min=1, help="Ten replays of every rung in each.")] = 5,
    device: Annotated[str, typer.Option(help="A GPU.")] = "cuda",
) -> None:
    """Print the table."""
    where, shape = torch.device(device), (rows, columns)
    rungs = RUNGS if torch.cuda.get_device_capability(where) >= (9, 0) else RUNGS[:-1]
    exact, dense = (make_gpu_operand(kernel, shape, where) for kernel in ("bsfp-full", "bf16"))
    rotated = CACHE_MULTIPLE * torch.cuda.get_device_properties(where).L2_cache_size
    ours, theirs = ([each.copy() for _ in range(-(-rotated // each.num_bytes) + 1)] for each in (exact, dense))
    x = torch.randn((tokens, columns), generator=torch.Generator().manual_seed(1)).to(where, torch.bfloat16)
    check(ours[0].arrays, x, rungs)
    calls = {rung: [partial(climb, rung, each.arrays, x) for each in ours] for rung in rungs}
    calls["torch"] = [partial(each.product, x) for each in theirs]
    turns = -(-MIN_LAUNCHES // len(ours))
    found = defaultdict[str, list[float]](list)
    for _ in range(rounds):
        for name, each in calls.items():
            found[name] += seconds_of_launches(where, each * turns)
    print(f"{torch.cuda.get_device_name(where)}, {rows} x {columns}, {tokens} tokens, {exact.num_bytes} bytes")
    print("| rung | us | GB/s | times torch |\n|---|---|---|---|")
    for name, seconds in found.items():
        median, num_bytes = spread(seconds).median, (dense if name == "torch" else exact).num_bytes
        times = spread([their / own for own, their in zip(seconds, found["torch"], strict=True)]).median
        print(f"| {name} | {1e6 * median:.1f} | {num_bytes / median / 1e9:.0f} | {times:.2f} |")


if __name__ == "__main__":
    typer.run(main)
