"""A model of random weights in TinyLlama's shape, 2.2 GB, to measure decoding on without a download.

python examples/make_random_model.py random-llama            # a second argument divides every size
mxconv quantize random-llama -o random-bsfp --codec bsfp
mxconv bench decode random-bsfp
"""

import json
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from mxconv.checkpoint.safetensors_header import format_header

TINYLLAMA = {
    "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22, "num_attention_heads": 32,
    "num_key_value_heads": 4, "vocab_size": 32000,
}  # fmt: skip
OTHERS = {"max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False}


def main(folder: str, divisor: str = "1") -> None:
    config = {name: max(size // int(divisor), 1) for name, size in TINYLLAMA.items()}
    hidden, mlp, num_layers, heads, kv_heads, vocabulary = config.values()
    kv = hidden // heads * kv_heads
    shapes = dict.fromkeys(("model.embed_tokens.weight", "lm_head.weight"), (vocabulary, hidden))
    shapes["model.norm.weight"] = (hidden,)
    for layer in (f"model.layers.{index}" for index in range(num_layers)):
        shapes |= {f"{layer}.{name}_layernorm.weight": (hidden,) for name in ("input", "post_attention")}
        shapes |= {f"{layer}.self_attn.{name}_proj.weight": (hidden, hidden) for name in "qo"}
        shapes |= {f"{layer}.self_attn.{name}_proj.weight": (kv, hidden) for name in "kv"}
        shapes |= {f"{layer}.mlp.{name}_proj.weight": (mlp, hidden) for name in ("gate", "up")}
        shapes[f"{layer}.mlp.down_proj.weight"] = (hidden, mlp)
    rng = np.random.default_rng(0)
    Path(folder).mkdir()
    with Path(folder, "model.safetensors").open("xb") as file:
        file.write(format_header([(name, "BF16", shape) for name, shape in shapes.items()], {"format": "pt"})[0])
        for shape in shapes.values():
            values = rng.standard_normal(shape, np.float32) / np.sqrt(hidden) if len(shape) == 2 else np.ones(shape)
            file.write(values.astype(ml_dtypes.bfloat16).tobytes())
    config |= {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16", **OTHERS}
    Path(folder, "config.json").write_text(json.dumps(config, indent=1))
    save_tokenizer(Path(folder))


def save_tokenizer(folder: Path) -> None:
    """Of bytes; the model's other rows are never asked for."""
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "th"]
    merges = [("t", "h")]  # llama.cpp loads no tokenizer without merges
    tokenizer = Tokenizer(models.BPE({text: token for token, text in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))


if __name__ == "__main__":
    main(*sys.argv[1:])
