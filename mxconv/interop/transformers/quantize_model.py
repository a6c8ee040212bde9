"""Replace the linear layers of a torch model by ours, in place."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Literal

import torch
from torch import nn

from mxconv.codecs.mxfp4 import ScaleRule
from mxconv.conversion.plan import HEADS, ROUTERS, matches
from mxconv.errors import ModelError
from mxconv.gpu.device import checked_device, require_room
from mxconv.interop.transformers.kernel_linear import BSFPLinear, MXFP4Linear, as_bsfp, as_mxfp4, weight_patterns
from mxconv.package.stored_matrix import StoredBsfp, StoredMxfp4

Codec = Literal["mxfp4", "bsfp"]
LEAST_BITS = {"mxfp4": 4.25, "bsfp": 12.125}  # a weight


def quantize_model(
    model: nn.Module,
    codec: Codec = "mxfp4",
    *,
    lm_head: Literal["quantize", "keep"] = "quantize",
    skip: Sequence[str] = (),
    scale_rule: ScaleRule = "ocp",
    device: str | torch.device | None = None,
    activations: Literal["bf16", "int8"] = "bf16",
) -> list[str]:
    """Replace every `torch.nn.Linear` by an `MXFP4Linear` or `BSFPLinear`, in place; the model then only infers.

    With a `device` they become `GpuLinear`s there, layer by layer, experts that transformers stacks become
    `GpuExperts`, and the rest of the model follows. Embeddings stay as they are, also where the output head was tied to
    them. Either every layer can be replaced or nothing is touched.

    Args:
        model: on the CPU, weights in 16 bits (or float32 that holds BF16 values).
        codec: "mxfp4", 4-bit weights; or "bsfp", the exact weights in fewer bits.
        lm_head: whether to replace the output head too, in the same codec.
        skip: patterns of weight names to leave, as `mxconv quantize --skip` takes them.
        scale_rule: of MXFP4.
        device: a GPU; None for the kernels of the CPU.
        activations: on a GPU, what 4-bit weights are multiplied by.

    Returns:
        The names of the replaced modules, in the model's order.

    Raises:
        ModelError: there is nothing to replace, a layer cannot be, or there is no such device or no room on it.
    """
    if codec not in ("mxfp4", "bsfp") or lm_head not in ("quantize", "keep"):
        raise ModelError(f"quantize_model: codec {codec!r}, lm_head {lm_head!r}; mxfp4 or bsfp, quantize or keep.")
    linears = {
        name: module
        for name, module in model.named_modules()
        if name and type(module) is nn.Linear and _is_wanted(f"{name}.weight", lm_head, skip)
    }
    if not linears:
        raise ModelError(
            f"{type(model).__name__}: no torch.nn.Linear to replace; at least one is required. Check skip, and that "
            "the model is not quantized already."
        )
    for name, linear in linears.items():
        _check(linear.weight, name, f"{name}.weight", codec)
    if device is not None:
        names = _quantize_on_gpu(model, linears, codec, lm_head, skip, scale_rule, checked_device(device), activations)
    else:
        names = list(linears)
        for name, linear in linears.items():
            layer = (
                MXFP4Linear.from_linear(linear, scale_rule, name) if codec == "mxfp4"
                else BSFPLinear.from_linear(linear, name)
            )  # fmt: skip
            model.set_submodule(name, layer.train(linear.training))
    model.requires_grad_(False)  # what no gradient reaches should not ask for one
    return names


def _quantize_on_gpu(
    model: nn.Module,
    linears: dict[str, nn.Linear],
    codec: Codec,
    lm_head: str,
    skip: Sequence[str],
    scale_rule: ScaleRule,
    device: torch.device,
    activations: Literal["bf16", "int8"],
) -> list[str]:
    from mxconv.gpu.gpu_experts import STACKS, GpuExperts, ModuleExperts, expert_modules, expert_weights
    from mxconv.gpu.gpu_linear import GpuLinear
    from mxconv.gpu.stacked_weight import StackedWeight
    from mxconv.gpu.weight import uploaded_weight

    experts = {
        name: module for name, module in expert_modules(model)
        if all(_is_wanted(f"{name}.{stack}", lm_head, skip) for stack in STACKS)
    }  # fmt: skip
    names = [name for name, _ in model.named_modules() if name in linears or name in experts]
    stacks = [getattr(module, stack) for module in experts.values() for stack in STACKS]
    _require_room(model, [*(linear.weight for linear in linears.values()), *stacks], codec, device)
    for name, module in experts.items():
        for stack in STACKS:
            for number, weight in enumerate(expert_weights(module, stack)):
                _check(weight, f"{name}.{stack}[{number}]", f"{name}.{stack}", codec)
    for name, module in experts.items():
        first, second = (
            StackedWeight.uploaded(
                [
                    _encoded(weight, f"{name}.{stack}[{number}]", codec, scale_rule)
                    for number, weight in enumerate(expert_weights(module, stack))
                ],
                device,
                activations,
            )
            for stack in STACKS
        )
        model.set_submodule(name, GpuExperts(module, ModuleExperts((first,), second)).train(module.training))
    for name, linear in linears.items():
        uploaded = uploaded_weight(_encoded(linear.weight, name, codec, scale_rule), device, activations)
        bias = None if linear.bias is None else linear.bias.to(device)
        model.set_submodule(name, GpuLinear(uploaded, bias).train(linear.training))
    model.to(device)
    return names


def _encoded(weight: torch.Tensor, name: str, codec: Codec, scale_rule: ScaleRule) -> StoredBsfp | StoredMxfp4:
    return as_mxfp4(weight, name, scale_rule) if codec == "mxfp4" else as_bsfp(weight, name)


def _check(weight: torch.Tensor, name: str, skipped_as: str, codec: str) -> None:
    """Refuse a weight that cannot be encoded."""
    weight_patterns(weight, name)
    weight = weight.detach()
    if codec == "mxfp4" and not weight.isfinite().all():
        row, column = torch.nonzero(~weight.isfinite())[0].tolist()
        raise ModelError(
            f"{name}: weight [{row}, {column}] is {float(weight[row, column])}; finite weights are required. "
            f"Leave it with skip=['{skipped_as}'], or use codec='bsfp'."
        )


def _require_room(model: nn.Module, weights: list[torch.Tensor], codec: str, device: torch.device) -> None:
    """Refuse a model that cannot fit, by the least bytes that its layers take; escapes come on top."""
    tied = {module.weight.data_ptr() for module in model.modules() if isinstance(module, nn.Embedding)}
    replaced = {weight.data_ptr() for weight in weights} - tied
    kept = sum(each.nbytes for each in model.parameters() if each.data_ptr() not in replaced)
    num_weights = sum(weight.numel() for weight in weights)
    num_bytes = int(kept + num_weights * LEAST_BITS[codec] / 8)
    four_bit = int(kept + num_weights * LEAST_BITS["mxfp4"] / 8)
    smaller = f"With codec='mxfp4' they are {four_bit / 1e9:.2f} GB." if codec == "bsfp" else "Free memory."
    require_room(device, num_bytes, type(model).__name__, smaller)


def _is_wanted(weight: str, lm_head: str, skip: Sequence[str]) -> bool:
    if any(fnmatchcase(weight, glob) for glob in skip) or matches(weight, ROUTERS):
        return False
    return lm_head == "quantize" or not matches(weight, HEADS)
