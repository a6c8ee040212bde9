"""A model of random weights in the shape of one that people download, to measure decoding on without a download.

    python examples/make_family_model.py gemma3 random-gemma3
    mxconv quantize random-gemma3 -o random-gemma3-bsfp --codec bsfp
    mxconv bench decode random-gemma3-bsfp

| name | shape | parameters |
|---|---|---|
| gemma3 | Gemma 3 1B | 1.0 billion |
| qwen3_moe | a small Qwen3-MoE: 64 experts, 8 of which a token takes | 2.6 billion, 0.5 of them a token |
| qwen3_5 | a small Qwen3.5: three layers of gated DeltaNet to one of attention | 1.0 billion |

Names and shapes of the tensors are those of transformers, which must be installed. Tokens are bytes.
"""

import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import torch
from make_random_model import save_tokenizer
from transformers import AutoConfig, AutoModelForCausalLM

from mxconv.checkpoint.safetensors_header import format_header

VALUES_AT_ONCE = 1 << 24
MODELS: dict[str, dict[str, Any]] = {
    "gemma3": {
        "model_type": "gemma3_text",
        "vocab_size": 262144,
        "hidden_size": 1152,
        "intermediate_size": 6912,
        "num_hidden_layers": 26,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "sliding_window": 512,
    },
    "qwen3_moe": {
        "model_type": "qwen3_moe",
        "vocab_size": 32000,
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 512,
        "norm_topk_prob": True,
    },
    "qwen3_5": {
        "model_type": "qwen3_5_text",
        "vocab_size": 32000,
        "hidden_size": 1536,
        "intermediate_size": 4608,
        "num_hidden_layers": 28,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "linear_num_value_heads": 16,
        "linear_num_key_heads": 16,
    },
}
OFFSET_NORMS = ("gemma3", "qwen3_5")  # whose weights, but for those of DeltaNet, are what they differ from one by


def main(name: str, folder: str) -> None:
    config = AutoConfig.for_model(**{"max_position_embeddings": 4096, "torch_dtype": "bfloat16", **MODELS[name]})
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    tied = set(model.all_tied_weights_keys) if config.tie_word_embeddings else set()
    shapes: dict[str, tuple[int, ...]] = {}
    for key, tensor in model.state_dict().items():
        if key not in tied:
            shapes |= as_published(key, tuple(tensor.shape))
    rng = np.random.default_rng(0)
    Path(folder).mkdir()
    with Path(folder, "model.safetensors").open("xb") as file:
        file.write(format_header([(key, "BF16", shape) for key, shape in shapes.items()], {"format": "pt"})[0])
        for key, shape in shapes.items():
            vector = 0.0 if name in OFFSET_NORMS and "linear_attn" not in key else 1.0
            left = int(np.prod(shape))
            while left:
                count = min(left, VALUES_AT_ONCE)
                values = (
                    rng.standard_normal(count, np.float32) / np.sqrt(shape[-1])
                    if len(shape) > 1
                    else np.full(count, vector)
                )
                file.write(values.astype(ml_dtypes.bfloat16).tobytes())
                left -= count
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)
    save_tokenizer(Path(folder))


def as_published(key: str, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Experts one by one, which transformers stacks when it loads them."""
    prefix, experts, part = key.partition(".mlp.experts.")
    if not experts:
        return {key: shape}
    count, rows, columns = shape
    parts = {"gate_up_proj": {"gate_proj": rows // 2, "up_proj": rows // 2}, "down_proj": {"down_proj": rows}}[part]
    return {
        f"{prefix}.mlp.experts.{expert}.{name}.weight": (size, columns)
        for expert in range(count)
        for name, size in parts.items()
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
