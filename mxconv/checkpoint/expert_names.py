"""Which tensors are stacks of experts, and which way their matrices lie.

A layer has two stacks: one leads from hidden_size to the experts' own size, one back. Where the first holds gates and
ups side by side, its shape and that of the second say which axis is which, so that no family need be known:

    first (E, a, b), second (E, c, d)    out_in: a = 2 d and b = c    in_out: b = 2 c and a = d    never both

gpt_oss, llama4 and aria have in_out; qwen3_vl_moe has either, by the version that wrote it; granitemoe, gemma4 and
qwen3_5_moe have out_in. Stacks without gates fit both ways: for them the table says it.

Source:
    the modules of transformers 5.23 that hold a Parameter of three dimensions, and its table of names in checkpoints.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from mxconv.checkpoint.stacked import Axes, StackedExperts


class Shaped(Protocol):
    """What has a shape: a tensor of a checkpoint."""

    @property
    def shape(self) -> tuple[int, ...]: ...


@dataclass(frozen=True)
class ExpertNames:
    """How the names of a layer's two stacks end."""

    first: str  # hidden_size to the experts' own size
    second: str  # and back
    axes_without_gates: Axes | None = None  # None: such stacks always have gates


EXPERT_NAMES = (
    ExpertNames(".experts.gate_up_proj", ".experts.down_proj"),
    ExpertNames(".experts.fc1.weight", ".experts.fc2.weight"),  # aria
    ExpertNames(".input_linear.weight", ".output_linear.weight", "out_in"),  # granitemoe; jetmoe, attention too
)


def stacked_experts(tensors: Mapping[str, Shaped]) -> dict[str, StackedExperts]:
    """The stacks among the tensors of a checkpoint, by name.

    Stacks whose shapes fit no way, or one without the other, are not among them.
    """
    found: dict[str, StackedExperts] = {}
    for name, tensor in tensors.items():
        for names in EXPERT_NAMES:
            if not name.endswith(names.first):
                continue
            other = name.removesuffix(names.first) + names.second
            if other in tensors and (axes := _axes(tensor.shape, tensors[other].shape, names)):
                found[name] = StackedExperts(_three(tensor.shape), axes)
                found[other] = StackedExperts(_three(tensors[other].shape), axes)
    return found


def _axes(first: tuple[int, ...], second: tuple[int, ...], names: ExpertNames) -> Axes | None:
    if len(first) != 3 or len(second) != 3 or first[0] != second[0] or 0 in (*first, *second):
        return None
    (_, a, b), (_, c, d) = first, second
    if (a, b) == (2 * d, c):
        return "out_in"
    if (a, b) == (d, 2 * c):
        return "in_out"
    return names.axes_without_gates if (a, b) == (d, c) else None


def _three(shape: tuple[int, ...]) -> tuple[int, int, int]:
    num_experts, first, second = shape
    return num_experts, first, second
