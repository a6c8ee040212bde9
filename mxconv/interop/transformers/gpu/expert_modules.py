"""Modules of transformers that hold the experts of a layer, and where a package has their matrices.

Such a module has two stacks, `gate_up_proj` and `down_proj`, and the gate between them; transformers chooses how it
multiplies (`use_experts_implementation`). Checkpoints hold the stacks, or each expert's matrices by themselves.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from mxconv.errors import ModelError

if TYPE_CHECKING:
    from mxconv.kernels.triton.expert_stack import ExpertStack

STACKS = ("gate_up_proj", "down_proj")
# behind a module's name, as `ExpertGroup` names them: of the first stack, or of gates and ups, and of the second
NAMES = (
    ((".gate_up_proj",), ".down_proj"),
    ((".*.gate_proj.weight", ".*.up_proj.weight"), ".*.down_proj.weight"),
    ((".*.w1.weight", ".*.w3.weight"), ".*.w2.weight"),
    ((".input_linear.weight",), ".output_linear.weight"),  # granitemoe
)
# as transformers calls modules, and checkpoints
MODULES = ((".mlp.experts", ".block_sparse_moe.experts"), (".block_sparse_moe.experts", ".block_sparse_moe"))


@dataclass(frozen=True)
class ExpertMatrices:
    """What a package has of a module's experts: hidden_size to gates and ups, side by side or apart, and back."""

    first: "tuple[ExpertStack, ...]"
    second: "ExpertStack"


def expert_modules(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Those whose experts are gated and stacked, by name."""
    for name, module in model.named_modules():
        stacks = [getattr(module, stack, None) for stack in STACKS]
        is_known = hasattr(module, "_apply_gate") and hasattr(module, "is_transposed")
        is_known = is_known and getattr(module, "has_gate", True)  # early versions of transformers 5 do not say it
        if is_known and all(isinstance(each, nn.Parameter) and each.ndim == 3 for each in stacks):
            yield name, module


def matrix_shapes(module: Any) -> tuple[tuple[int, int, int], ...]:
    """(experts, out_features, in_features) of both stacks."""
    shapes = (getattr(module, stack).shape for stack in STACKS)
    return tuple((e, b, a) if module.is_transposed else (e, a, b) for e, a, b in shapes)


def matrices_of_experts(
    model: nn.Module, stacks: "Mapping[str, ExpertStack]", origin: str
) -> dict[str, tuple[Any, ExpertMatrices]]:
    """The modules of which a package has the experts, by name, with these.

    Args:
        model: any torch model.
        stacks: by the names of `ExpertGroup`s.
        origin: where they are from, for messages.

    Raises:
        ModelError: they have other shapes than the module's.
    """
    found = {}
    for name, module in expert_modules(model):
        matrices = _of_module(name, stacks)
        if matrices is None or (len(matrices.first) > 1 and not getattr(module, "is_concatenated", True)):
            continue
        wanted, first, second = matrix_shapes(module), matrices.first[0], matrices.second
        has = (
            (first.num_experts, sum(each.rows for each in matrices.first), first.columns),
            (second.num_experts, second.rows, second.columns),
        )
        if has != wanted:
            raise ModelError(
                f"{origin}: experts of {name} are {has[0]} and {has[1]}; {type(model).__name__} requires {wanted[0]} "
                f"and {wanted[1]}. Convert this model."
            )
        found[name] = module, matrices
    return found


def _of_module(name: str, stacks: "Mapping[str, ExpertStack]") -> ExpertMatrices | None:
    homes = [name, *(name.removesuffix(ours) + theirs for ours, theirs in MODULES if name.endswith(ours))]
    for home in homes:
        for first, second in NAMES:
            wanted = [home + ending for ending in (*first, second)]
            if all(each in stacks for each in wanted):
                *mine, last = (stacks[each] for each in wanted)
                return ExpertMatrices(tuple(mine), last)
    return None
