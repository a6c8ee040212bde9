"""Replace the linear layers of a torch model by a GPU's, in place."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Literal

import numpy as np
import torch
from torch import nn

from mxconv.arrays import U16
from mxconv.codecs.bsfp.histogram import PatternHistogram
from mxconv.codecs.bsfp.packing import escape_offsets
from mxconv.codecs.float16 import FORMATS, FloatFormat
from mxconv.codecs.mxfp4 import ScaleRule
from mxconv.conversion.plan import HEADS, ROUTERS, matches
from mxconv.errors import ModelError
from mxconv.gpu.device import checked_device, require_room
from mxconv.kernels.encoders import add_to_histogram, encode_bsfp, encode_mxfp4, fit_table, row_shifts_of
from mxconv.package.stored import StoredBsfp, StoredMxfp4

Codec = Literal["mxfp4", "bsfp"]
TORCH_FORMATS = {torch.bfloat16: "BF16", torch.float16: "F16"}
LEAST_BITS = {"mxfp4": 4.25, "bsfp": 12.125}  # a weight


def quantize_model(
    model: nn.Module,
    codec: Codec = "mxfp4",
    *,
    lm_head: Literal["quantize", "keep"] = "quantize",
    skip: Sequence[str] = (),
    scale_rule: ScaleRule = "ocp",
    device: str | torch.device = "cuda",
) -> list[str]:
    """Replace every `torch.nn.Linear` by a `GpuLinear` on a device, in place; the model then only infers.

    Layers go there one by one, experts that transformers stacks become `GpuExperts`, and the rest of the model follows.
    Embeddings stay as they are, also where the output head was tied to them. Either every layer can be replaced or
    nothing is touched.

    Args:
        model: on the CPU, weights in 16 bits (or float32 that holds BF16 values).
        codec: "mxfp4", 4-bit weights; or "bsfp", the exact weights in fewer bits.
        lm_head: whether to replace the output head too, in the same codec.
        skip: patterns of weight names to leave, as `mxconv quantize --skip` takes them.
        scale_rule: of MXFP4.
        device: a GPU.

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
    names = _replace(model, linears, codec, lm_head, skip, scale_rule, checked_device(device))
    model.requires_grad_(False)  # what no gradient reaches should not ask for one
    return names


def _replace(
    model: nn.Module,
    linears: dict[str, nn.Linear],
    codec: Codec,
    lm_head: str,
    skip: Sequence[str],
    scale_rule: ScaleRule,
    device: torch.device,
) -> list[str]:
    from mxconv.gpu.gpu_experts import STACKS, GpuExperts, ModuleExperts, expert_modules, expert_weights
    from mxconv.gpu.gpu_linear import GpuLinear
    from mxconv.gpu.weight import StackedWeight, uploaded_weight

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
            )
            for stack in STACKS
        )
        model.set_submodule(name, GpuExperts(module, ModuleExperts((first,), second)).train(module.training))
    for name, linear in linears.items():
        uploaded = uploaded_weight(_encoded(linear.weight, name, codec, scale_rule), device)
        bias = None if linear.bias is None else linear.bias.to(device)
        model.set_submodule(name, GpuLinear(uploaded, bias).train(linear.training))
    model.to(device)
    return names


def _encoded(weight: torch.Tensor, name: str, codec: Codec, scale_rule: ScaleRule) -> StoredBsfp | StoredMxfp4:
    """Encode a torch layer's weight, which was checked."""
    patterns, float_format = _patterns(weight, name)
    shape = (weight.shape[0], weight.shape[1])
    if codec == "mxfp4":
        return StoredMxfp4(shape, *encode_mxfp4(patterns, float_format, scale_rule))
    histogram = PatternHistogram(float_format)
    add_to_histogram(histogram, patterns)
    table = fit_table(histogram).table
    packed = encode_bsfp(patterns, table, row_shifts_of(patterns, float_format) if table.has_row_shifts else None)
    return StoredBsfp(shape, table, packed, escape_offsets(packed), 1.0)


def _patterns(weight: torch.Tensor, name: str) -> tuple[U16, FloatFormat]:
    """A torch layer's weight as 16-bit patterns, (out_features, in_features), and their format.

    Raises:
        ModelError: not on the CPU, of no 16-bit dtype, or float32 that would have to be rounded.
    """
    weight = weight.detach()
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


def _check(weight: torch.Tensor, name: str, skipped_as: str, codec: str) -> None:
    """Refuse a weight that cannot be encoded."""
    _patterns(weight, name)
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
