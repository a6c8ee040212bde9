"""The kernel that reads memory and does next to nothing else."""

import torch
import triton
import triton.language as tl

PIECE_WORDS = 4096  # of a program: 16 KiB, 32 words a thread
NUM_WARPS = 4


@triton.jit(do_not_specialize=["first", "num_pieces"])
def _read(words, sums, first, num_pieces, PIECE: tl.constexpr):
    piece = (first + tl.program_id(0)) % num_pieces
    read = tl.load(words + piece.to(tl.int64) * PIECE + tl.arange(0, PIECE))
    tl.store(sums + tl.program_id(0), tl.sum(read, axis=0))


def read_pieces(words: torch.Tensor, first: int, count: int, sums: torch.Tensor) -> None:
    """Read pieces of 16 KiB, from the first on, beginning anew at the end.

    Args:
        words: (n,) int32, n a multiple of `PIECE_WORDS`.
        first: the piece to begin with.
        count: how many.
        sums: (at least count,) int32; of the words of each piece, written here, so that nothing is left out.
    """
    _read[count,](words, sums, first, len(words) // PIECE_WORDS, PIECE=PIECE_WORDS, num_warps=NUM_WARPS)
