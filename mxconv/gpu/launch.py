"""Which device launches go to, and which tokens are multiplied by which expert of a stack."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
import triton.language as tl

MAX_TOKENS = tl.constexpr(16)  # of a product by kernels; the smallest width of tensor cores


def on(device: torch.device) -> AbstractContextManager[None]:
    """Make this GPU the current one, which launches go to."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


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
