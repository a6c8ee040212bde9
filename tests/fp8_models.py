"""Tiny models with FP8 weights in blocks, as DeepSeek and Qwen publish theirs, for all test folders."""

import json
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from stacked_models import random_model, save

BLOCK = 32  # of the tiny models; published ones have 128
KEPT = ("norm", "embed_tokens", "lm_head", "mlp.gate.weight")


def write_fp8_model(folder: Path, model_type: str = "qwen3", block: int = BLOCK, **changes: Any) -> Path:
    """A model whose linear layers are F8_E4M3 with `weight_scale_inv`; the tokenizer is whatever the test adds."""
    save(random_model(model_type, **changes).to(torch.bfloat16), folder)
    path = folder / "model.safetensors"
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in safetensors.torch.load_file(path).items():
        if tensor.ndim != 2 or any(part in name for part in KEPT):
            tensors[name] = tensor
            continue
        tensors[name], tensors[f"{name}_scale_inv"] = quantize(tensor.float(), block)
    safetensors.torch.save_file(tensors, path, {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    quantization = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [block, block]}
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": quantization}))
    return folder


def quantize(weights: torch.Tensor, block: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Bytes, and a float32 scale a block, the last ones perhaps cut short."""
    rows, columns = weights.shape
    padded = torch.nn.functional.pad(weights, (0, -columns % block, 0, -rows % block))
    blocks = padded.unflatten(0, (-1, block)).unflatten(2, (-1, block))  # (rows, block, columns, block)
    scales = blocks.abs().amax(dim=(1, 3)).clamp(min=1e-12) / 448
    codes = (blocks / scales[:, None, :, None]).flatten(2).flatten(0, 1)[:rows, :columns]
    return codes.to(torch.float8_e4m3fn).contiguous(), scales.contiguous()


def dequantize(tensors: dict[str, torch.Tensor], block: int = BLOCK) -> dict[str, torch.Tensor]:
    """The BF16 weights, by torch alone: whole products, then one rounding."""
    found = {}
    for name, tensor in tensors.items():
        if name.endswith("_scale_inv"):
            continue
        found[name] = tensor
        if (scales := tensors.get(f"{name}_scale_inv")) is not None:
            wide = scales.float().repeat_interleave(block, 0).repeat_interleave(block, 1)
            found[name] = (tensor.float() * wide[: tensor.shape[0], : tensor.shape[1]]).bfloat16()
    return found
