"""Experts of a layer on a GPU: matrices of one shape, of which each token is multiplied by a few.

    routed = RoutedPairs.of(top_k_index, stack.num_experts)
    stack.product(x, routed)    # (tokens * top_k, rows)

A program of the kernels takes 16 of the pairs of one expert, so that its weights are read once for all 16. The host
waits for the GPU only where so many tokens come that experts are better rebuilt, one by one, for torch's product.
"""

from collections.abc import Sequence

import torch

from mxconv.gpu.launch import MAX_TOKENS, RoutedPairs
from mxconv.gpu.weight import BsfpWeight, FourBitWeight, at_level, uploaded_weight
from mxconv.package.stored_matrix import StoredBsfp, StoredMxfp4


class StackedWeight:
    """Experts in one format.

    Args:
        experts: in their order; of BSFP all with as many planes, and all or none with row starts.
    """

    def __init__(self, experts: Sequence[BsfpWeight | FourBitWeight]) -> None:
        self.num_experts = len(experts)
        exact = [each for each in experts if isinstance(each, BsfpWeight)]
        four_bit = [each for each in experts if isinstance(each, FourBitWeight)]
        self.weight = BsfpWeight.stacked(exact) if exact else FourBitWeight.stacked(four_bit)
        self.rows, self.columns = self.weight.rows, self.weight.columns

    @classmethod
    def uploaded(cls, stored: Sequence[StoredBsfp | StoredMxfp4], device: torch.device) -> "StackedWeight":
        """Copy experts to a device; arguments as for `uploaded_weight`."""
        num_planes = max((each.table.residual_bits for each in stored if isinstance(each, StoredBsfp)), default=8) - 8
        return cls([uploaded_weight(each, device, None, num_planes, True) for each in stored])

    @property
    def num_bytes(self) -> int:
        """Bytes on the device."""
        return self.weight.num_bytes

    def expert(self, number: int) -> BsfpWeight | FourBitWeight:
        """The matrix of one expert: views."""
        return self.weight.expert(number, self.num_experts)

    def product(self, x: torch.Tensor, routed: RoutedPairs, level: str = "target") -> torch.Tensor:
        """Multiply each token by the experts that it is routed to.

        Args:
            x: (tokens or pairs, columns) of a float type.
            routed: as many tokens or pairs, for as many experts.
            level: "target", or "draft" for the one in BSFP; MXFP4 has one level.

        Returns:
            (pairs, rows) float32. Up to 16 tokens, a row's bits depend on its row of `x` and its expert alone.
        """
        if len(routed.experts) <= MAX_TOKENS.value * self.num_experts:
            return at_level(self.weight, level).product(x, routed)
        out = torch.empty((len(routed.experts), self.rows), dtype=torch.float32, device=x.device)
        pairs = routed.pairs.long()
        counts = torch.bincount(routed.experts, minlength=self.num_experts).tolist()
        for number, mine in enumerate(pairs.split(counts)):
            if len(mine):
                rows = x[mine // (len(routed.experts) // len(x))]
                out[mine] = at_level(self.expert(number), level).product(rows)
        return out
