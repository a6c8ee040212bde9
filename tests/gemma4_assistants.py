"""Assistants of the tiny Gemma 4 with random weights on disk."""

from pathlib import Path
from typing import Any

import torch
from family_checkpoints import GEMMA4, PLAIN_GEMMA4, SIZES
from transformers import Gemma4AssistantConfig, Gemma4AssistantForCausalLM

TEXT = (
    SIZES
    | GEMMA4
    | PLAIN_GEMMA4
    | {
        "attention_k_eq_v": True,
        "hidden_size": 32,
        "model_type": "gemma4_text",
        "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "final_logit_softcapping": None,
        "use_double_wide_mlp": False,
        "vocab_size_per_layer_input": 0,
    }
)
CLUSTERS = {"use_ordered_embeddings": True, "num_centroids": 12, "centroid_intermediate_top_k": 5}


def make_assistant(vocab_size: int = SIZES["vocab_size"], **changes: Any) -> Any:
    """A random one, every parameter exact in BF16."""
    torch.manual_seed(1)
    text = TEXT | {"vocab_size": vocab_size}
    config = Gemma4AssistantConfig(text_config=text, backbone_hidden_size=SIZES["hidden_size"], **changes)
    config.text_config._attn_implementation = config._attn_implementation = "eager"
    model = Gemma4AssistantForCausalLM(config).eval()
    for name, parameter in model.named_parameters():
        noise = torch.randn_like(parameter) / (parameter.shape[1] ** 0.5 if parameter.ndim > 1 else 4)
        parameter.data = (noise + (parameter.ndim == 1) * (not name.endswith("bias"))).bfloat16().float()
    if model.masked_embedding is not None:
        model.masked_embedding.token_ordering.copy_(torch.randperm(vocab_size))
    return model


def write_assistant(folder: Path, model: Any) -> Path:
    """As save_pretrained writes it, in BF16."""
    ordering = model.state_dict().get("masked_embedding.token_ordering")
    tensors = {name: tensor.bfloat16() for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    if ordering is not None:
        tensors["masked_embedding.token_ordering"] = ordering
    model.save_pretrained(folder, state_dict=tensors)
    return folder
