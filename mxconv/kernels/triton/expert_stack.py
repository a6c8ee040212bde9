"""The experts of a layer on a GPU: matrices of one shape, of which each token is multiplied by a few.

    chosen = Chosen.of(top_k_index, stack.num_experts)
    stack.product(x, chosen)    # (tokens * top_k, rows)

A program of the kernels takes 16 of the pairs of one expert, so its weights are read once for them all. Nothing waits
for the GPU until so many tokens come that experts are better rebuilt, one by one, for torch's product.
"""

from collections.abc import Sequence

import torch

from mxconv.kernels.triton.bsfp_weight import BsfpWeight
from mxconv.kernels.triton.chosen import Chosen
from mxconv.kernels.triton.launch import MAX_TOKENS
from mxconv.kernels.triton.weight import FourBitWeight


class ExpertStack:
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

    @property
    def num_bytes(self) -> int:
        """On the device."""
        return self.weight.num_bytes

    def expert(self, number: int) -> BsfpWeight | FourBitWeight:
        """One of them: views."""
        return self.weight.expert(number, self.num_experts)

    def product(self, x: torch.Tensor, chosen: Chosen, level: str = "target") -> torch.Tensor:
        """Each token times the experts that it is sent to.

        Args:
            x: (tokens or pairs, columns) of a float type.
            chosen: of so many tokens or pairs, for so many experts.
            level: "target", or "draft" for the one in BSFP; MXFP4 has one level.

        Returns:
            (pairs, rows) float32. Up to 16 tokens, a row's bits depend on its row of `x` and its expert alone.
        """
        if chosen.num_pairs <= MAX_TOKENS.value * self.num_experts:
            return _at(self.weight, level).product(x, chosen)
        out = torch.empty((chosen.num_pairs, self.rows), dtype=torch.float32, device=x.device)
        pairs = chosen.pairs.long()
        counts = torch.bincount(chosen.experts, minlength=self.num_experts).tolist()
        for number, mine in enumerate(pairs.split(counts)):
            if len(mine):
                rows = x[mine // (chosen.num_pairs // len(x))]
                out[mine] = _at(self.expert(number), level).product(rows)
        return out


def _at(weight: BsfpWeight | FourBitWeight, level: str) -> BsfpWeight | FourBitWeight:
    return weight.draft if isinstance(weight, BsfpWeight) and level == "draft" else weight
