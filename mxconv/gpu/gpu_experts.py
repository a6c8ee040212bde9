"""Experts of a layer on a GPU's kernels, and which stacks of a package belong to which module of transformers.

A module of transformers that holds experts has two stacks, `gate_up_proj` and `down_proj`, and the gate between them;
transformers chooses how it multiplies (`use_experts_implementation`). Checkpoints hold the stacks, or the matrices of
each expert as tensors of their own.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from mxconv.errors import ModelError
from mxconv.gpu.gpu_linear import LeveledModule
from mxconv.gpu.launch import RoutedPairs
from mxconv.gpu.weight import BsfpWeight, StackedWeight

STACKS = ("gate_up_proj", "down_proj")
# what follows the module's name in names of `ExpertGroup`s: the first stack, or gates and ups, and the second stack
NAMES = (
    ((".gate_up_proj",), ".down_proj"),
    ((".*.gate_proj.weight", ".*.up_proj.weight"), ".*.down_proj.weight"),
    ((".*.w1.weight", ".*.w3.weight"), ".*.w2.weight"),
    ((".input_linear.weight",), ".output_linear.weight"),  # granitemoe
)
# names of modules in transformers, and of the same modules in checkpoints
MODULES = ((".mlp.experts", ".block_sparse_moe.experts"), (".block_sparse_moe.experts", ".block_sparse_moe"))


@dataclass(frozen=True)
class ModuleExperts:
    """The matrices of a module's experts on a device."""

    first: tuple[StackedWeight, ...]  # hidden_size to gates and ups: one stack of both, or a stack of each
    second: StackedWeight  # back to hidden_size


class GpuExperts(LeveledModule):
    """Replaces a module of transformers that holds experts, for inference; gate, biases and norm remain the module's.

    Args:
        original: the module. Its stacks are freed, unless it remains the target.
        matrices: on a device.
        is_target: whether the module remains the target, and the matrices are its draft.
    """

    def __init__(self, original: Any, matrices: ModuleExperts, is_target: bool = False) -> None:
        super().__init__(has_target=is_target or isinstance(matrices.second.weight, BsfpWeight))
        self.original, self.matrices, self._is_target = original, matrices, is_target
        if not is_target:
            for stack in STACKS:
                setattr(original, stack, None)

    def forward(self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor) -> Any:
        """Multiply as the original module does.

        Args:
            hidden_states: (tokens, hidden_size).
            top_k_index: (tokens, top_k) the experts of each token.
            top_k_weights: (tokens, top_k) their weights.

        Returns:
            (tokens, hidden_size).
        """
        original, dtype = self.original, hidden_states.dtype
        if self._is_target and self.level == "target":
            return original(hidden_states, top_k_index, top_k_weights)
        routed = RoutedPairs.of(top_k_index, self.matrices.second.num_experts)
        experts = top_k_index.reshape(-1)
        halves = [stack.product(hidden_states, routed, self.level) for stack in self.matrices.first]
        gate_up = torch.cat(halves, dim=-1)
        if original.has_bias:
            gate_up = gate_up + original.gate_up_proj_bias[experts]
        out = self.matrices.second.product(original._apply_gate(gate_up.to(dtype)), routed, self.level)
        if original.has_bias:
            out = out + original.down_proj_bias[experts]
        out = out.to(dtype)
        if getattr(original, "has_post_expert_norm", False):
            out = original.post_expert_norm(out)
        weighted = out * top_k_weights.reshape(-1, 1)
        return weighted.view(*top_k_index.shape, -1).sum(dim=1).to(dtype)

    def extra_repr(self) -> str:
        return f"num_experts={self.matrices.second.num_experts}, level={self.level}"


def expert_modules(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Modules whose experts are gated and stacked, with their names."""
    for name, module in model.named_modules():
        stacks = [getattr(module, stack, None) for stack in STACKS]
        is_known = hasattr(module, "_apply_gate") and hasattr(module, "is_transposed")
        is_known = is_known and getattr(module, "has_gate", True)  # early versions of transformers 5 do not say it
        if is_known and all(isinstance(each, nn.Parameter) and each.ndim == 3 for each in stacks):
            yield name, module


def expert_weights(module: Any, stack: str) -> list[torch.Tensor]:
    """(out_features, in_features) weights of each expert of a stack: views."""
    matrices = getattr(module, stack).detach()
    return [matrix.T if module.is_transposed else matrix for matrix in matrices]


def matrices_of_experts(
    model: nn.Module, stacks: Mapping[str, StackedWeight], origin: str
) -> dict[str, tuple[Any, ModuleExperts]]:
    """Modules whose experts a package has, by name, with these experts.

    Args:
        model: any torch model.
        stacks: by the names of `ExpertGroup`s.
        origin: the package, for messages.

    Raises:
        ModelError: experts have other shapes than the module's.
    """
    found = {}
    for name, module in expert_modules(model):
        matrices = _of_module(name, stacks)
        if matrices is None or (len(matrices.first) > 1 and not getattr(module, "is_concatenated", True)):
            continue
        first, second = matrices.first[0], matrices.second
        has = (
            (first.num_experts, sum(each.rows for each in matrices.first), first.columns),
            (second.num_experts, second.rows, second.columns),
        )
        wanted = tuple((len(weights), *weights[0].shape) for weights in (expert_weights(module, s) for s in STACKS))
        if has != wanted:
            raise ModelError(
                f"{origin}: experts of {name} are {has[0]} and {has[1]}; {type(model).__name__} requires {wanted[0]} "
                f"and {wanted[1]}. Convert this model."
            )
        found[name] = module, matrices
    return found


def _of_module(name: str, stacks: Mapping[str, StackedWeight]) -> ModuleExperts | None:
    homes = [name, *(name.removesuffix(ours) + theirs for ours, theirs in MODULES if name.endswith(ours))]
    for home in homes:
        for first, second in NAMES:
            wanted = [home + ending for ending in (*first, second)]
            if all(each in stacks for each in wanted):
                *mine, last = (stacks[each] for each in wanted)
                return ModuleExperts(tuple(mine), last)
    return None
