"""The weights of a torch layer as the codecs read them."""

import numpy as np
import torch
from torch import nn

from mxconv.arrays import U16
from mxconv.codecs.float16 import FORMATS, FloatFormat
from mxconv.errors import ModelError

TORCH_FORMATS = {torch.bfloat16: "BF16", torch.float16: "F16"}


def weight_patterns(linear: nn.Linear, name: str) -> tuple[U16, FloatFormat]:
    """The weights of a torch layer as 16-bit patterns, (out_features, in_features), and their format.

    Raises:
        ModelError: not on the CPU, of no 16-bit dtype, or float32 that would have to be rounded.
    """
    weight = linear.weight.detach()
    if weight.device.type != "cpu":
        raise ModelError(f"{name}: weights on {weight.device}; the CPU is required. Move the model there first.")
    if 0 in weight.shape:
        raise ModelError(f"{name}: weights of shape {tuple(weight.shape)}; at least one is required. Skip this layer.")
    if weight.dtype == torch.float32:
        rounded = weight.to(torch.bfloat16)
        if not torch.equal(rounded.to(torch.float32), weight):
            raise ModelError(
                f"{name}: float32 weights that BF16 does not hold exactly; 16-bit weights are required. "
                "Round them yourself: model.to(torch.bfloat16)."
            )
        weight = rounded
    if weight.dtype not in TORCH_FORMATS:
        raise ModelError(
            f"{name}: weights of {weight.dtype}; bfloat16 or float16 is required. Convert the model, or skip this "
            "layer."
        )
    patterns: U16 = weight.contiguous().view(torch.int16).numpy().view(np.uint16)
    return patterns, FORMATS[TORCH_FORMATS[weight.dtype]]
