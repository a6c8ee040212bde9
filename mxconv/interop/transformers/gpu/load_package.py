"""A package's matrices in the place of a torch model's linear layers, on a GPU, without encoding anything."""

from pathlib import Path
from typing import Literal

import torch
from torch import nn

from mxconv.gpu.device import checked_device
from mxconv.gpu.package import GpuPackage
from mxconv.interop.transformers.gpu.expert_modules import matrices_of_experts
from mxconv.interop.transformers.gpu.layer_weights import put_module, weights_of_layers
from mxconv.package.manifest import read_manifest
from mxconv.package.package_folder import find_package


def load_package(
    model: nn.Module,
    package: str | Path,
    device: str | torch.device = "cuda",
    activations: Literal["bf16", "int8"] = "bf16",
) -> list[str]:
    """Replace what a package has the weights of, and move the rest of the model.

    Linear layers become `GpuLinear`s; experts, which transformers stacks, `GpuExperts`.

    The package's bytes go to the device as they are, hashes checked: of BSFP both levels, of an MXFP4 package its 4-bit
    weights. What the layers held is not read, and may be on the meta device. The model then only infers.

    Args:
        model: that of the package, as transformers makes it.
        package: a folder, or a Hub id.
        device: a GPU.
        activations: what 4-bit weights are multiplied by.

    Returns:
        The names of the replaced modules, in the model's order.

    Raises:
        MxconvError: no such device, no room on it, or a package that is damaged or of another model.
    """
    found = checked_device(device)
    from mxconv.interop.transformers.gpu.experts import GpuExperts
    from mxconv.interop.transformers.gpu.linear import GpuLinear

    root = find_package(package)
    level: Literal["target", "draft"] = "target" if read_manifest(root).options.codec == "bsfp" else "draft"
    loaded = GpuPackage(root, found, level, activations)
    layers = weights_of_layers(model, loaded.weights, str(package))
    experts = matrices_of_experts(model, loaded.stacks, str(package))
    for name, (linear, weight) in layers.items():
        bias = None if linear.bias is None else linear.bias.to(found)
        put_module(model, name, GpuLinear(weight, bias).train(linear.training))
    for name, (module, matrices) in experts.items():
        put_module(model, name, GpuExperts(module, matrices).train(module.training))
    names = [name for name, _ in model.named_modules() if name in layers or name in experts]
    model.to(found).requires_grad_(False)
    return names
