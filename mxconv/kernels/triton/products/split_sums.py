"""The sums of the splits, added in ascending order."""

import torch
import triton
import triton.language as tl

BLOCK = tl.constexpr(1024)


@triton.jit(do_not_specialize=["num_sums"])
def _add_splits(partial, out, num_sums, num_splits):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    is_there = place < num_sums
    total = tl.load(partial + place, mask=is_there, other=0)
    for split in range(1, num_splits):
        total += tl.load(partial + split * num_sums + place, mask=is_there, other=0)
    tl.store(out + place, total, mask=is_there)


def add_splits(partial: torch.Tensor) -> torch.Tensor:
    """(splits, tokens, rows) float32 to (tokens, rows)."""
    if len(partial) == 1:
        return partial[0]
    out = torch.empty(partial.shape[1:], dtype=torch.float32, device=partial.device)
    _add_splits[-(-out.numel() // BLOCK.value),](partial, out, out.numel(), len(partial))
    return out
