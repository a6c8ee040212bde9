"""Tiny random mixtures of experts, saved by transformers, for all test folders."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

SIZES: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 384,
    "moe_intermediate_size": 384,
    "intermediate_size_mlp": 256,
    "shared_expert_intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 512,
    "num_local_experts": 4,
    "num_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def write_random_model(folder: Path, model_type: str, dtype: torch.dtype = torch.bfloat16, **changes: Any) -> Path:
    """A model of this type, weights 0.02 times normal, its vectors as they are initialized."""
    save(random_model(model_type, **changes).to(dtype), folder)
    return folder


def packed_experts(num_experts: int, rows: int, num_blocks: int) -> dict[str, torch.Tensor]:
    """Random bytes of MXFP4, every code and many scales among them."""
    generator = torch.Generator().manual_seed(rows)
    blocks = torch.randint(0, 256, (num_experts, rows, num_blocks, 16), dtype=torch.uint8, generator=generator)
    scales = torch.randint(100, 140, (num_experts, rows, num_blocks), dtype=torch.uint8, generator=generator)
    return {"blocks": blocks, "scales": scales}


def write_carried_model(folder: Path, **stacks: tuple[int, int, int]) -> Path:
    """A gpt_oss some of whose stacks of experts, of these shapes, are MXFP4 already."""
    write_random_model(folder, "gpt_oss", hidden_size=64, head_dim=16, intermediate_size=100, num_hidden_layers=1)
    path, prefix = folder / "model.safetensors", "model.layers.0.mlp.experts."
    tensors = safetensors.torch.load_file(path)
    for name, shape in stacks.items():
        del tensors[prefix + name]
        tensors |= {f"{prefix}{name}_{part}": tensor for part, tensor in packed_experts(*shape).items()}
    safetensors.torch.save_file(tensors, path, {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "mxfp4"}}))
    return folder


def random_model(model_type: str, **changes: Any) -> Any:
    """The same, not yet saved, in float32."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **SIZES | changes))
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data = torch.randn(parameter.shape) * 0.02
    return model


def save(model: Any, folder: Path) -> None:
    _without_bars()
    model.save_pretrained(folder)


@cache
def _without_bars() -> None:
    from transformers.utils import logging

    logging.disable_progress_bar()
