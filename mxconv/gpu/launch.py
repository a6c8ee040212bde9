"""How the kernels cut a matrix into programs, and which tokens each program multiplies.

A program takes 64 rows (four row tiles) and a split of 1024 columns, in steps of 128 columns. The cut depends on the
matrix's shape alone, so sums have the same order on every GPU. A program always multiplies 16 tokens, missing ones
being zeros: a token's sums take the same instructions whatever the other tokens are. A kernel of its own adds the sums
of the splits in ascending order.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from mxconv.codecs.vnni8 import TILE_COLUMNS, TILE_ROWS

MAX_TOKENS = tl.constexpr(16)  # of a product by kernels; the smallest width of tensor cores
ROWS = tl.constexpr(64)  # of a program: the rows of a warp group's matrix instruction
STEP = tl.constexpr(128)  # columns of a step: a group of BSFP scales
SPLIT = tl.constexpr(1024)  # columns of a program
ROW_TILES = tl.constexpr(ROWS.value // TILE_ROWS)
STEP_TILES = tl.constexpr(STEP.value // TILE_COLUMNS)
SPLIT_TILES = tl.constexpr(SPLIT.value // TILE_COLUMNS)
NUM_WARPS = 4
# Numbers that kernels are not compiled anew for: tokens, so that any number of them takes the same machine code, and
# sizes whose factors tell the compiler nothing.
FREE = ("num_out", "row_tiles", "column_tiles", "num_blocks")
SUMS = tl.constexpr(1024)  # that one program of `_add_splits` makes

# The interpreter multiplies BF16 operands as if their patterns were integers, so it gets them as float32, exactly.
IS_INTERPRETED: bool = triton.knobs.runtime.interpret
OPERANDS = {
    torch.bfloat16: tl.float32 if IS_INTERPRETED else tl.bfloat16,
    torch.float16: tl.float32 if IS_INTERPRETED else tl.float16,
}


def on(device: torch.device) -> AbstractContextManager[None]:
    """Make this GPU the current one, which launches go to."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def num_splits(num_columns: int) -> int:
    """Number of programs side by side along the columns."""
    return -(-num_columns // int(SPLIT.value))


def num_row_programs(num_rows: int) -> int:
    """Number of programs one below the other."""
    return -(-num_rows // int(ROWS.value))


@dataclass(frozen=True, eq=False)
class RoutedPairs:
    """Pairs of a token and an expert, sorted by expert on the device; pair i of a token is `token * per_token + i`."""

    num_experts: int
    num_tokens: int
    per_token: int  # experts of a token
    experts: torch.Tensor  # (pairs,) int32, ascending
    pairs: torch.Tensor  # (pairs,) int32: the numbers of the pairs, in the order of their experts
    places: torch.Tensor  # (pairs,) int32: how many pairs of the same expert come before

    @classmethod
    def of(cls, top_k_index: torch.Tensor, num_experts: int) -> "RoutedPairs":
        """Sort what a router chose.

        Args:
            top_k_index: (tokens, per_token) integers, at least one.
            num_experts: larger numbers are taken for the last expert, so that no other memory is read.
        """
        flat = top_k_index.reshape(-1).clamp(0, num_experts - 1)
        experts, pairs = torch.sort(flat, stable=True)
        places = torch.arange(len(flat), device=flat.device) - torch.searchsorted(experts, experts)
        as_int32 = (each.to(torch.int32) for each in (experts, pairs, places))
        return cls(num_experts, len(top_k_index), top_k_index.shape[1], *as_int32)


class SplitProduct:
    """The launch of a product: its grid, the tokens of its programs, and the sums of its splits.

    Args:
        x: (tokens or pairs, columns) activations.
        shape: (rows, columns) of the matrix, or of one expert.
        routed: the experts of each token; None where there is one matrix.
    """

    def __init__(self, x: torch.Tensor, shape: tuple[int, int], routed: RoutedPairs | None) -> None:
        self.num_experts, num_groups, self.per_row, self.num_out = 1, 1, 0, len(x)
        arrays: tuple[torch.Tensor | None, ...] = (None, None, None)
        if routed is not None:
            assert len(x) in (routed.num_tokens, len(routed.experts))
            arrays = routed.experts, routed.pairs, routed.places
            self.num_experts, num_groups, self.num_out = routed.num_experts, len(routed.experts), len(routed.experts)
            self.per_row = len(routed.experts) // len(x)
        rows, columns = shape
        self.grid = num_row_programs(rows), num_splits(columns), num_groups
        self._partial = torch.empty((self.grid[1], self.num_out, rows), dtype=torch.float32, device=x.device)
        self.arguments = (*arrays, self._partial, self.num_out, rows, columns)  # from `experts` to `num_columns`

    def sums(self) -> torch.Tensor:
        """(tokens or pairs, rows) float32, once the kernel was launched."""
        if len(self._partial) == 1:
            return self._partial[0]
        out = torch.empty(self._partial.shape[1:], dtype=torch.float32, device=self._partial.device)
        _add_splits[-(-out.numel() // SUMS.value),](self._partial, out, out.numel(), len(self._partial))
        return out


@triton.jit(do_not_specialize=["num_sums"])
def _add_splits(partial, out, num_sums, num_splits):
    place = tl.program_id(0).to(tl.int64) * SUMS + tl.arange(0, SUMS)
    is_there = place < num_sums
    total = tl.load(partial + place, mask=is_there, other=0)
    for split in range(1, num_splits):
        total += tl.load(partial + split * num_sums + place, mask=is_there, other=0)
    tl.store(out + place, total, mask=is_there)


@triton.jit
def program_tokens(experts, pairs, places, num_out, PER_ROW: tl.constexpr):
    """The tokens of a program: all, or at most 16 of those that one expert of a stack gets.

    Of each 16 pairs of an expert, the first pair's program takes all; the programs of the others take none.

    Args:
        experts: with the next two as in `RoutedPairs`; None where the matrix is no stack.
        num_out: rows of the result: tokens, or pairs.
        PER_ROW: pairs that share a row of the activations; 0 where the matrix is no stack.

    Returns:
        The expert (int64), and (1, MAX_TOKENS) rows of the activations, rows of the result, and whether they exist.
    """
    lane = tl.arange(0, MAX_TOKENS)[None, :]
    if PER_ROW == 0:
        expert = tl.program_id(2).to(tl.int64)
        row_of_x = lane
        row_of_out = lane
        is_there = lane < num_out
    else:
        first = tl.program_id(2)
        expert = tl.load(experts + first).to(tl.int64)
        here = tl.load(experts + first + lane, mask=first + lane < num_out, other=-1)
        is_there = (here == expert) & (tl.load(places + first) % MAX_TOKENS == 0)
        row_of_out = tl.load(pairs + first + lane, mask=is_there, other=0)
        row_of_x = row_of_out // PER_ROW
    return expert, row_of_x, row_of_out, is_there


@triton.jit
def rows_of_places():
    """(ROWS, 1): which of a program's rows is at each place of its tile: every fourth, four times over.

    A thread reads four adjacent rows, and each goes to shared memory with those of other threads: in this order they
    take different banks of it.
    """
    place = tl.arange(0, ROWS)[:, None]
    return place % (ROWS // 4) * 4 + place // (ROWS // 4)


@triton.jit
def store_sums(partial, sums, row_of_out, is_there, num_out, num_rows):
    """Write a program's (ROWS, MAX_TOKENS) sums to its split of (splits, num_out, num_rows)."""
    row = tl.program_id(0) * ROWS + rows_of_places()
    place = (tl.program_id(1) * num_out + row_of_out).to(tl.int64) * num_rows + row
    tl.store(partial + place, sums, mask=is_there & (row < num_rows))
