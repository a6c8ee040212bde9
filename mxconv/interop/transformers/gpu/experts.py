"""The experts of a layer on the Triton kernels: of BSFP, exact target and draft in one set of bytes on a GPU."""

from typing import Any, Literal

import torch
from torch import nn

from mxconv.codecs.mxfp4 import ScaleRule
from mxconv.errors import ModelError
from mxconv.interop.transformers.bsfp_linear import BSFPLinear
from mxconv.interop.transformers.gpu.expert_modules import STACKS, ExpertMatrices
from mxconv.interop.transformers.mxfp4_linear import MXFP4Linear
from mxconv.kernels.triton.bsfp_weight import BsfpWeight
from mxconv.kernels.triton.chosen import Chosen
from mxconv.kernels.triton.expert_stack import ExpertStack
from mxconv.kernels.triton.weight import Activations, FourBitWeight


class GpuExperts(nn.Module):
    """In the place of a module of transformers that holds experts, for inference: gate, biases and norm are its own.

    `level` is "target" or "draft", and may be changed at any time where there are both.

    Args:
        original: the module. Its stacks are let go, unless it stays the target.
        matrices: on a device.
        is_target: whether the module stays the target, and the matrices are its draft.
    """

    def __init__(self, original: Any, matrices: ExpertMatrices, is_target: bool = False) -> None:
        super().__init__()
        self.original, self.matrices, self._is_target = original, matrices, is_target
        self._level: Literal["target", "draft"] = "target" if self.has_target else "draft"
        if not is_target:
            for stack in STACKS:
                setattr(original, stack, None)

    @classmethod
    def from_experts(
        cls,
        experts: Any,
        codec: Literal["mxfp4", "bsfp"],
        device: torch.device,
        scale_rule: ScaleRule = "ocp",
        activations: Activations = "bf16",
        name: str = "experts",
    ) -> "GpuExperts":
        """Encode a module's experts, each by itself, and copy them to a device.

        Raises:
            ModelError: weights that cannot be encoded.
        """
        first, second = (
            _encoded(linears_of(experts, stack, name), codec, device, scale_rule, activations) for stack in STACKS
        )
        return cls(experts, ExpertMatrices((first,), second))

    @property
    def has_target(self) -> bool:
        """Whether the exact weights are here."""
        return self._is_target or isinstance(self.matrices.second.weight, BsfpWeight)

    @property
    def level(self) -> Literal["target", "draft"]:
        """Which of the two weights multiplies."""
        return self._level

    @level.setter
    def level(self, level: Literal["target", "draft"]) -> None:
        if level not in ("target", "draft") or (level == "target" and not self.has_target):
            having = "target or draft" if self.has_target else "draft, the only one of MXFP4,"
            raise ModelError(f"GpuExperts: level {level!r}; {having} is required.")
        self._level = level

    def forward(self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor) -> Any:
        """As the module: (tokens, hidden_size), (tokens, top_k) experts and their weights to (tokens, hidden_size)."""
        original, dtype = self.original, hidden_states.dtype
        if self._is_target and self._level == "target":
            return original(hidden_states, top_k_index, top_k_weights)
        chosen = Chosen.of(top_k_index, self.matrices.second.num_experts)
        experts = top_k_index.reshape(-1)

        def products(stack: ExpertStack, x: torch.Tensor) -> torch.Tensor:
            return stack.product(x, chosen, self._level)

        gate_up = torch.cat([products(each, hidden_states) for each in self.matrices.first], dim=-1)
        if original.has_bias:
            gate_up = gate_up + original.gate_up_proj_bias[experts]
        out = products(self.matrices.second, original._apply_gate(gate_up.to(dtype)))
        if original.has_bias:
            out = out + original.down_proj_bias[experts]
        out = out.to(dtype)
        if getattr(original, "has_post_expert_norm", False):
            out = original.post_expert_norm(out)
        weighted = out * top_k_weights.reshape(-1, 1)
        return weighted.view(*top_k_index.shape, -1).sum(dim=1).to(dtype)

    def extra_repr(self) -> str:
        return f"num_experts={self.matrices.second.num_experts}, level={self._level}"


def linears_of(experts: Any, stack: str, name: str) -> list[tuple[str, nn.Linear]]:
    """The experts of a stack as layers on the CPU that share its memory, with names for messages."""
    found = []
    for number, matrix in enumerate(getattr(experts, stack).detach()):
        weight = matrix.T if experts.is_transposed else matrix
        linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
        linear.weight = nn.Parameter(weight, requires_grad=False)
        found.append((f"{name}.{stack}[{number}]", linear))
    return found


def _encoded(
    linears: list[tuple[str, nn.Linear]],
    codec: Literal["mxfp4", "bsfp"],
    device: torch.device,
    scale_rule: ScaleRule,
    activations: Activations,
) -> ExpertStack:
    if codec == "mxfp4":
        mxfp4 = [MXFP4Linear.from_linear(linear, scale_rule, name).stored() for name, linear in linears]
        return ExpertStack([
            FourBitWeight.from_mxfp4(each.codes, each.scales, each.shape, device, activations) for each in mxfp4
        ])  # fmt: skip
    bsfp = [BSFPLinear.from_linear(linear, name).stored() for name, linear in linears]
    num_planes = max(each.table.residual_bits for each in bsfp) - 8
    return ExpertStack([
        BsfpWeight.from_packed(
            each.packed, each.table, each.shape, device, activations, num_planes=num_planes, has_row_starts=True
        )
        for each in bsfp
    ])  # fmt: skip
