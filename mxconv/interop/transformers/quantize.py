"""Replacing the linear layers of a torch model by ours, in place."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal

import torch
from torch import nn

from mxconv.codecs.mxfp4 import ScaleRule
from mxconv.conversion.plan import HEADS, ROUTERS, matches
from mxconv.errors import ModelError
from mxconv.gpu.device import checked_device
from mxconv.gpu.memory import require_room
from mxconv.interop.transformers.bsfp_linear import BSFPLinear
from mxconv.interop.transformers.gpu.expert_modules import STACKS, expert_modules
from mxconv.interop.transformers.gpu.layer_weights import put_module
from mxconv.interop.transformers.mxfp4_linear import MXFP4Linear
from mxconv.interop.transformers.weights import weight_patterns

LEAST_BITS = {"mxfp4": 4.25, "bsfp": 12.125}  # a weight


def quantize_model(
    model: nn.Module,
    codec: Literal["mxfp4", "bsfp"] = "mxfp4",
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
        lm_head: whether to replace the output head too.
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
    chosen = {
        name: module
        for name, module in model.named_modules()
        if name and type(module) is nn.Linear and _is_wanted(f"{name}.weight", lm_head, skip)
    }
    if not chosen:
        raise ModelError(
            f"{type(model).__name__}: no torch.nn.Linear to replace; at least one is required. Check skip, and that "
            "the model is not quantized already."
        )
    for name, linear in chosen.items():
        _check(linear, name, f"{name}.weight", codec)
    target = None if device is None else checked_device(device)
    names = list(chosen)
    if target is not None:
        experts = {
            name: module for name, module in expert_modules(model)
            if all(_is_wanted(f"{name}.{stack}", lm_head, skip) for stack in STACKS)
        }  # fmt: skip
        stacks = {f"{name}.{stack}": getattr(module, stack) for name, module in experts.items() for stack in STACKS}
        names = [name for name, _ in model.named_modules() if name in chosen or name in experts]
        _require_room(model, [*(linear.weight for linear in chosen.values()), *stacks.values()], codec, target)
        _replace_experts(model, experts, codec, target, scale_rule, activations)
    for name, linear in chosen.items():
        layer: nn.Module
        if target is not None:
            from mxconv.interop.transformers.gpu.linear import GpuLinear

            layer = GpuLinear.from_linear(linear, codec, target, scale_rule, activations, name)
        elif codec == "mxfp4":
            layer = MXFP4Linear.from_linear(linear, scale_rule, name)
        else:
            layer = BSFPLinear.from_linear(linear, name)
        put_module(model, name, layer.train(linear.training))
    if target is not None:
        model.to(target)
    model.requires_grad_(False)  # what no gradient reaches should not ask for one
    return names


def _check(linear: nn.Linear, name: str, skipped_as: str, codec: str) -> None:
    """Refuse what cannot be encoded."""
    weight_patterns(linear, name)
    weight = linear.weight.detach()
    if codec == "mxfp4" and not weight.isfinite().all():
        row, column = torch.nonzero(~weight.isfinite())[0].tolist()
        raise ModelError(
            f"{name}: weight [{row}, {column}] is {float(weight[row, column])}; finite weights are required. "
            f"Leave it with skip=['{skipped_as}'], or use codec='bsfp'."
        )


def _replace_experts(
    model: nn.Module,
    experts: Mapping[str, Any],
    codec: Literal["mxfp4", "bsfp"],
    device: torch.device,
    scale_rule: ScaleRule,
    activations: Literal["bf16", "int8"],
) -> None:
    """One module after the other, once all can be encoded."""
    from mxconv.interop.transformers.gpu.experts import GpuExperts, linears_of

    for name, module in experts.items():
        for stack in STACKS:
            for each, linear in linears_of(module, stack, name):
                _check(linear, each, f"{name}.{stack}", codec)
    for name, module in experts.items():
        replaced = GpuExperts.from_experts(module, codec, device, scale_rule, activations, name)
        put_module(model, name, replaced.train(module.training))


def _require_room(model: nn.Module, weights: list[torch.Tensor], codec: str, device: torch.device) -> None:
    """Refuse a model that cannot fit, by the least that its layers take; escapes come on top."""
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
