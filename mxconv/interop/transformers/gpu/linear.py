"""A linear layer on the Triton kernels: one set of bytes on a GPU, exact target and draft where they are BSFP."""

from typing import Literal

import torch
from torch import nn

from mxconv.codecs.mxfp4 import ScaleRule
from mxconv.errors import ModelError
from mxconv.interop.transformers.bsfp_linear import BSFPLinear
from mxconv.interop.transformers.linear import INPUT_DTYPES
from mxconv.interop.transformers.mxfp4_linear import MXFP4Linear
from mxconv.kernels.triton.bsfp_weight import BsfpWeight
from mxconv.kernels.triton.weight import Activations, FourBitWeight, Weight


class GpuLinear(nn.Module):
    """`y = x W^T + bias` for inference, W in BSFP or MXFP4 on a device.

    `level` is "target" or "draft", and may be changed at any time where W is BSFP. The weights are no parameters: what
    saves them is a package. `to` moves the bias alone.

    Args:
        weight: W, on a device.
        bias: added to the result; None without.
    """

    def __init__(self, weight: Weight, bias: torch.Tensor | None = None) -> None:
        super().__init__()
        self.weight_on_device = weight
        self.out_features, self.in_features = weight.rows, weight.columns
        self._level: Literal["target", "draft"] = "target" if isinstance(weight, BsfpWeight) else "draft"
        self.bias: torch.Tensor | None
        self.register_buffer("bias", None if bias is None else bias.detach().clone())

    @classmethod
    def from_linear(
        cls,
        linear: nn.Linear,
        codec: Literal["mxfp4", "bsfp"],
        device: torch.device,
        scale_rule: ScaleRule = "ocp",
        activations: Activations = "bf16",
        name: str = "linear",
    ) -> "GpuLinear":
        """Encode a torch layer, as `MXFP4Linear.from_linear` and `BSFPLinear.from_linear` do, and copy it to a device.

        Raises:
            ModelError: weights that cannot be encoded.
        """
        bias = None if linear.bias is None else linear.bias.to(device)
        if codec == "mxfp4":
            mxfp4 = MXFP4Linear.from_linear(linear, scale_rule, name).stored()
            return cls(FourBitWeight.from_mxfp4(mxfp4.codes, mxfp4.scales, mxfp4.shape, device, activations), bias)
        bsfp = BSFPLinear.from_linear(linear, name).stored()
        return cls(BsfpWeight.from_packed(bsfp.packed, bsfp.table, bsfp.shape, device, activations), bias)

    @property
    def has_target(self) -> bool:
        """Whether the exact weights are here."""
        return isinstance(self.weight_on_device, BsfpWeight)

    @property
    def level(self) -> Literal["target", "draft"]:
        """Which of the two weights multiplies."""
        return self._level

    @level.setter
    def level(self, level: Literal["target", "draft"]) -> None:
        if level not in ("target", "draft") or (level == "target" and not self.has_target):
            having = "target or draft" if self.has_target else "draft, the only one of MXFP4,"
            raise ModelError(f"GpuLinear: level {level!r}; {having} is required.")
        self._level = level

    def weight(self) -> torch.Tensor:
        """(out_features, in_features): the exact 16-bit weights of BSFP, or the values of MXFP4 in float32."""
        return self.weight_on_device.rebuild()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (..., in_features) to (..., out_features), in the dtype of `x`.

        Raises:
            ModelError: `x` is no float of 16 to 64 bits, has another last axis, or wants a gradient.
        """
        if x.dtype not in INPUT_DTYPES or x.dim() == 0 or x.shape[-1] != self.in_features:
            raise ModelError(
                f"GpuLinear: input of {x.dtype}, shape {tuple(x.shape)}; floats of 16 to 64 bits and a last axis of "
                f"{self.in_features} are required."
            )
        if x.requires_grad and torch.is_grad_enabled():
            raise ModelError(
                "GpuLinear: input that requires a gradient; this layer is for inference. Use torch.no_grad()."
            )
        rows = x.detach().reshape(-1, self.in_features)
        if len(rows) == 0:
            return x.new_empty((*x.shape[:-1], self.out_features))
        weight = self.weight_on_device
        if isinstance(weight, BsfpWeight) and self._level == "draft":
            result = weight.draft.product(rows)
        else:
            result = weight.product(rows)
        if self.bias is not None:
            result = result + self.bias
        return result.to(x.dtype).reshape(*x.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, "
            f"level={self._level}"
        )
