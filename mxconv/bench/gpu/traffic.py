"""Bytes of weights that a forward pass of a torch model reads."""

from torch import nn

from mxconv.interop.transformers.gpu.experts import GpuExperts
from mxconv.interop.transformers.gpu.linear import GpuLinear
from mxconv.kernels.triton.bsfp_weight import BsfpWeight


def bytes_per_pass(model: nn.Module, is_draft: bool = False) -> int | None:
    """Every weight once but those of embeddings, of which a token takes a row.

    Args:
        model: in 16 bits, or with a package's layers.
        is_draft: count the 4-bit weights of the package's layers.

    Returns:
        None where there are experts: a token is sent to some of them.
    """
    num_bytes = 0
    for module in model.modules():
        if isinstance(module, GpuExperts):
            return None
        if isinstance(module, GpuLinear):
            num_bytes += _packed_bytes(module, is_draft)
        if isinstance(module, nn.Embedding):
            continue
        for parameter in module.parameters(recurse=False):
            if parameter.ndim > 2:
                return None
            num_bytes += parameter.nbytes
    return num_bytes


def _packed_bytes(layer: GpuLinear, is_draft: bool) -> int:
    weight = layer.weight_on_device
    if not isinstance(weight, BsfpWeight):
        return weight.num_bytes
    return weight.draft.num_bytes if is_draft else weight.arrays.num_bytes
