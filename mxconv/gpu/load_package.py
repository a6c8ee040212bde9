"""Load a package into a torch model on a GPU."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mxconv.gpu.device import checked_device
from mxconv.package.manifest import read_manifest
from mxconv.package.package_folder import find_package

if TYPE_CHECKING:
    import torch
    from torch import nn


def load_package(
    model: "nn.Module",
    package: str | Path,
    device: "str | torch.device" = "cuda",
    residuals: Literal["device", "host"] = "device",
) -> list[str]:
    """Replace the layers that a package has the weights of, and move the rest of the model to the device.

    Linear layers become `GpuLinear`s; experts, which transformers stacks, become `GpuExperts`. The package's bytes go
    to the device as they are, hashes checked: both levels of BSFP, or the 4-bit weights of an MXFP4 package. The old
    layers' weights are not read, and may be on the meta device. Afterwards the model is for inference alone.

    Args:
        model: the package's model, as transformers makes it.
        package: a folder, or a Hub id.
        device: a GPU.
        residuals: "host" leaves what the draft does not read in the host's memory, as for `GpuPackage`.

    Returns:
        The names of the replaced modules, in the model's order.

    Raises:
        MxconvError: no such device, no room on it, or a package that is damaged or of another model.
    """
    found = checked_device(device)
    from mxconv.gpu.gpu_experts import GpuExperts, matrices_of_experts  # Triton, which is there now
    from mxconv.gpu.gpu_linear import GpuLinear, weights_of_layers
    from mxconv.gpu.gpu_package import GpuPackage

    root = find_package(package)
    level: Literal["target", "draft"] = "target" if read_manifest(root).options.codec == "bsfp" else "draft"
    loaded = GpuPackage(root, found, level, residuals)
    layers = weights_of_layers(model, loaded.weights, str(package))
    experts = matrices_of_experts(model, loaded.stacks, str(package))
    for name, (linear, weight) in layers.items():
        bias = None if linear.bias is None else linear.bias.to(found)
        model.set_submodule(name, GpuLinear(weight, bias).train(linear.training))
    for name, (module, matrices) in experts.items():
        model.set_submodule(name, GpuExperts(module, matrices).train(module.training))
    names = [name for name, _ in model.named_modules() if name in layers or name in experts]
    model.to(found).requires_grad_(False)
    return names
