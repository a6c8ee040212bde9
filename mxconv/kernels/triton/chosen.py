"""Which experts tokens are sent to, in the order in which kernels take them: by expert, without waiting for the GPU."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, eq=False)
class Chosen:
    """Pairs of a token and an expert; pair i of a token has the number `token * per_token + i`."""

    num_experts: int
    num_tokens: int
    per_token: int  # experts of a token
    experts: torch.Tensor  # (pairs,) int32, ascending
    pairs: torch.Tensor  # (pairs,) int32: the numbers of the pairs, in the order of their experts
    places: torch.Tensor  # (pairs,) int32: how many pairs of the same expert come before

    @classmethod
    def of(cls, chosen: torch.Tensor, num_experts: int) -> "Chosen":
        """From what a router chose.

        Args:
            chosen: (tokens, per_token) integers, at least one.
            num_experts: numbers beyond the last expert become the last, so that nothing else is read.
        """
        flat = chosen.reshape(-1).clamp(0, num_experts - 1)
        experts, pairs = torch.sort(flat, stable=True)
        places = torch.arange(len(flat), device=flat.device) - torch.searchsorted(experts, experts)
        as_int32 = (each.to(torch.int32) for each in (experts, pairs, places))
        return cls(num_experts, len(chosen), chosen.shape[1], *as_int32)

    @property
    def num_pairs(self) -> int:
        return len(self.experts)


class RowsOf:
    """What a launch is told of the rows that it multiplies.

    Args:
        x: (tokens or pairs, columns) activations.
        chosen: the experts of each token; None where there is one matrix.
    """

    def __init__(self, x: torch.Tensor, chosen: Chosen | None) -> None:
        self.arrays: tuple[torch.Tensor | None, ...] = (None, None, None)
        self.num_experts, self.num_groups, self.per_row, self.num_out = 1, 1, 0, len(x)
        if chosen is not None:
            assert len(x) in (chosen.num_tokens, chosen.num_pairs)
            self.arrays = chosen.experts, chosen.pairs, chosen.places
            self.num_experts, self.num_groups, self.num_out = chosen.num_experts, chosen.num_pairs, chosen.num_pairs
            self.per_row = chosen.num_pairs // len(x)
