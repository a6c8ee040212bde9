"""Tiny random models of transformers and their packages."""

from pathlib import Path
from typing import Any

import torch
from checkpoints import write_tiny_tokenizer
from packages import quantize
from transformers import AutoConfig, AutoModelForCausalLM

SIZES = {"model_type": "llama", "num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 48, "vocab_size": 96,
         "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 256,
         "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip


def packaged_model(folder: Path, **changes: Any) -> tuple[Any, Path]:
    """A model in BF16, and its MXFP4 package in a folder; its checkpoint, `source`, is beside that."""
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**SIZES | changes), dtype=torch.bfloat16).eval()
    for parameter in model.parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder / "source")
    write_tiny_tokenizer(folder / "source" / "tokenizer.json", 96)
    quantize(folder / "source", folder / "package")
    return model, folder / "package"


def endless_model(folder: Path, **changes: Any) -> tuple[Any, Path]:
    """As `packaged_model`, whose texts end by their length alone."""
    model, package = packaged_model(folder, **changes)
    model.generation_config.max_length = None
    model.generation_config.eos_token_id = None
    return model, package
