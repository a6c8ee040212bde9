"""Linear layers on a GPU's kernels, and which weight of a package belongs to which layer of a torch model."""

from collections.abc import Mapping
from typing import Literal

import torch
from torch import nn

from mxconv.errors import ModelError
from mxconv.gpu.weight import BsfpWeight, Weight, at_level

Level = Literal["target", "draft"]


class LeveledModule(nn.Module):
    """A module whose weights exist at one or two levels; `level` chooses between them at any time.

    Args:
        has_target: whether the exact weights are there, or 4-bit ones alone.
    """

    def __init__(self, has_target: bool) -> None:
        super().__init__()
        self.has_target = has_target
        self._level: Level = "target" if has_target else "draft"

    @property
    def level(self) -> Level:
        """The level that multiplies."""
        return self._level

    @level.setter
    def level(self, level: Level) -> None:
        if level not in ("target", "draft") or (level == "target" and not self.has_target):
            having = "target or draft" if self.has_target else "draft, the only one of MXFP4,"
            raise ModelError(f"{type(self).__name__}: level {level!r}; {having} is required.")
        self._level = level


class GpuLinear(LeveledModule):
    """`y = x W^T + bias` for inference, W in BSFP or MXFP4 on a device.

    The weights are no parameters: a package stores them, not a state dict, and `to` moves the bias alone.

    Args:
        weight: W, on a device.
        bias: added to the result; None without.
    """

    def __init__(self, weight: Weight, bias: torch.Tensor | None = None) -> None:
        super().__init__(has_target=isinstance(weight, BsfpWeight))
        self.weight_on_device = weight
        self.out_features, self.in_features = weight.rows, weight.columns
        self.bias: torch.Tensor | None
        self.register_buffer("bias", None if bias is None else bias.detach().clone())

    def weight(self) -> torch.Tensor:
        """(out_features, in_features): the exact 16-bit weights of BSFP, or the values of MXFP4 in float32."""
        return self.weight_on_device.rebuild()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (..., in_features) to (..., out_features), in the dtype of `x`.

        Raises:
            ModelError: `x` is no float, has another last axis, is on another device, or requires a gradient.
        """
        if x.requires_grad and torch.is_grad_enabled():
            raise ModelError(
                "GpuLinear: input that requires a gradient; this layer is for inference. Use torch.no_grad()."
            )
        if x.numel() == 0:
            return x.new_empty((*x.shape[:-1], self.out_features))
        result = at_level(self.weight_on_device, self.level).product(x.detach().reshape(-1, *x.shape[-1:]))
        if self.bias is not None:
            result = result + self.bias
        return result.to(x.dtype).reshape(*x.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, "
            f"level={self.level}"
        )


class DraftedLinear(LeveledModule):
    """A torch layer, the target, and the same weights in 4 bits, the draft.

    Args:
        original: the torch layer.
        weight: its 4-bit weights, on the same device.
    """

    def __init__(self, original: nn.Linear, weight: Weight) -> None:
        super().__init__(has_target=True)
        self.original, self.draft = original, GpuLinear(weight, original.bias)

    @property
    def weight(self) -> torch.Tensor:
        """The torch layer's weights."""
        return self.original.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply with the weights of the present level."""
        module = self.original if self.level == "target" else self.draft
        result: torch.Tensor = module(x)
        return result


def weights_of_layers(
    model: nn.Module, weights: Mapping[str, Weight], origin: str
) -> dict[str, tuple[nn.Linear, Weight]]:
    """The linear layers that a package has the weights of, by name, with these weights.

    A head that is tied to the embeddings has their weight.

    Args:
        model: any torch model.
        weights: by the names of their tensors.
        origin: the package, for messages.

    Raises:
        ModelError: a weight has another shape than its layer, or no layer has one.
    """
    embeddings = {id(each.weight): name for name, each in model.named_modules() if isinstance(each, nn.Embedding)}
    found = {}
    for name, linear in model.named_modules():
        if type(linear) is not nn.Linear:
            continue
        tied = embeddings.get(id(linear.weight), name)
        weight = weights.get(f"{name}.weight", weights.get(f"{tied}.weight"))
        if weight is None:
            continue
        if (weight.rows, weight.columns) != tuple(linear.weight.shape):
            raise ModelError(
                f"{origin}: {name}.weight is {weight.rows} x {weight.columns}; {type(model).__name__} requires "
                f"{' x '.join(map(str, linear.weight.shape))}. Convert this model."
            )
        found[name] = (linear, weight)
    if not found:
        raise ModelError(
            f"{origin}: none of its matrices is a linear layer of {type(model).__name__}; one of the same name is "
            "required. Convert this model."
        )
    return found
