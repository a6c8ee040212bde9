"""Which rows of the activations a program multiplies: all tokens, or those that are sent to one expert of a stack."""

import triton
import triton.language as tl

from mxconv.kernels.triton.launch import MAX_TOKENS


@triton.jit
def chosen_rows(experts, pairs, places, num_rows, PER_ROW: tl.constexpr):
    """At most 16 rows, each a column of the product.

    The program of the first of each 16 pairs of an expert takes these; the others take none.

    Args:
        experts: (pairs,) int32 as `Chosen` has them; these three are None where the matrix is no stack.
        pairs: (pairs,) int32.
        places: (pairs,) int32.
        num_rows: of the result: tokens, or pairs.
        PER_ROW: pairs that share a row of the activations; 0 where the matrix is no stack.

    Returns:
        The expert (int64), and (1, MAX_TOKENS) rows of the activations, rows of the result, and which there are.
    """
    lane = tl.arange(0, MAX_TOKENS)[None, :]
    if PER_ROW == 0:
        expert = tl.program_id(2).to(tl.int64)
        row_of_x = lane
        row_of_out = lane
        is_there = lane < num_rows
    else:
        first = tl.program_id(2)
        expert = tl.load(experts + first).to(tl.int64)
        here = tl.load(experts + first + lane, mask=first + lane < num_rows, other=-1)
        is_there = (here == expert) & (tl.load(places + first) % MAX_TOKENS == 0)
        row_of_out = tl.load(pairs + first + lane, mask=is_there, other=0)
        row_of_x = row_of_out // PER_ROW
    return expert, row_of_x, row_of_out, is_there
