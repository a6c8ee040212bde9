"""A model of random weights in the shape of one that people download, to measure on without a download.

    python examples/make_random_model.py random-llama [SHAPE [DIVISOR]]       # a divisor makes every size smaller
    mxconv quantize random-llama -o random-bsfp --codec bsfp
    mxconv bench decode random-bsfp

| SHAPE | of | parameters |
|---|---|---|
| llama | TinyLlama | 1.1 billion |
| gemma3 | Gemma 3 1B | 1.0 billion |
| qwen3_moe | a small Qwen3-MoE: 64 experts, 8 of which a token takes | 2.6 billion, 0.5 of them a token |
| qwen3_5 | a small Qwen3.5: three layers of gated DeltaNet to one of attention | 1.1 billion |
| large | seven layers of Llama 7B with an embedding of 1 GB: how much memory does a conversion take? | 1.9 billion |

Names and shapes of the tensors are those of transformers, which must be installed. Tokens are bytes.
"""

import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM

from mxconv.checkpoint.safetensors_header import format_header

VALUES_AT_ONCE = 1 << 24
OTHERS = {"max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16"}
NAMES = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size"
)  # fmt: skip
SIZES = {  # what a divisor makes smaller
    "llama": (2048, 5632, 22, 32, 4, 32000),
    "gemma3": (1152, 6912, 26, 4, 1, 262144),
    "qwen3_moe": (1024, 512, 24, 16, 4, 32000),  # each expert has the intermediate size
    "qwen3_5": (1536, 4608, 28, 8, 2, 32000),
    "large": (4096, 11008, 7, 32, 32, 131072),
}
KINDS: dict[str, dict[str, object]] = {
    "llama": {"model_type": "llama", "max_position_embeddings": 2048},
    "gemma3": {"model_type": "gemma3_text", "head_dim": 256, "sliding_window": 512},
    "qwen3_moe": {
        "model_type": "qwen3_moe", "head_dim": 128, "num_experts": 64, "num_experts_per_tok": 8, "norm_topk_prob": True
    },
    "qwen3_5": {
        "model_type": "qwen3_5_text", "head_dim": 256, "linear_num_value_heads": 16, "linear_num_key_heads": 16
    },
    "large": {"model_type": "llama"},
}  # fmt: skip
OFFSET_NORMS = ("gemma3", "qwen3_5")  # whose weights, but for those of DeltaNet, are their difference from one


def main(folder: str, shape: str = "llama", divisor: str = "1") -> None:
    sizes = {name: max(size // int(divisor), 1) for name, size in zip(NAMES, SIZES[shape], strict=True)}
    if shape == "qwen3_moe":
        sizes["moe_intermediate_size"] = sizes["intermediate_size"]
    config = AutoConfig.for_model(**OTHERS | sizes | KINDS[shape])
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
        file.write(format_header([(key, "BF16", dims) for key, dims in shapes.items()], {"format": "pt"})[0])
        for key, dims in shapes.items():
            vector = 0.0 if shape in OFFSET_NORMS and "linear_attn" not in key else 1.0
            for begin in range(0, int(np.prod(dims)), VALUES_AT_ONCE):
                count = min(int(np.prod(dims)) - begin, VALUES_AT_ONCE)
                scale = 1 / np.sqrt(dims[-1])
                values = rng.standard_normal(count, np.float32) * scale if len(dims) > 1 else np.full(count, vector)
                file.write(values.astype(ml_dtypes.bfloat16).tobytes())
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "th"]  # bytes; other rows of the embedding are never read
    merges = [("t", "h")]  # llama.cpp loads no tokenizer without merges
    tokenizer = Tokenizer(models.BPE({text: token for token, text in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(Path(folder, "tokenizer.json")))


def as_published(key: str, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """The shapes of experts one by one, which transformers stacks when it loads them."""
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
