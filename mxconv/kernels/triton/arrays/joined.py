"""Arrays of the experts of a stack, one below the other."""

from collections.abc import Sequence

import torch


def joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Contiguous tensors of one dtype as one, along the first axis: a view where they adjoin in memory, else a copy."""
    first = parts[0]
    ends = [part.data_ptr() + part.nbytes for part in parts]
    storages = {part.untyped_storage().data_ptr() for part in parts}
    if len(storages) == 1 and all(end == part.data_ptr() for end, part in zip(ends, parts[1:], strict=False)):
        return first.as_strided((sum(map(len, parts)), *first.shape[1:]), first.stride())
    return torch.cat(list(parts))


def piece(whole: torch.Tensor, number: int, num_pieces: int) -> torch.Tensor:
    """One of pieces of equal length along the first axis: a view."""
    length = len(whole) // num_pieces
    return whole[number * length : (number + 1) * length]
