"""Tiny checkpoints on disk, written by the safetensors library (never by mxconv), for all test folders."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

_FLOATS = {"BF16": ml_dtypes.bfloat16, "F16": np.float16, "F32": np.float32}

TINY_LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 172,  # no multiple of 32
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def write_safetensors(path: Path, tensors: Mapping[str, NDArray[Any]], metadata: dict[str, str] | None = None) -> Path:
    """Write arrays (of NumPy or ml_dtypes types) with the safetensors library."""
    arrays = {name: np.asarray(array, order="C") for name, array in tensors.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(safetensors.numpy.save(arrays, metadata=metadata))
    return path


def write_raw_safetensors(path: Path, header: object, payload: bytes = b"") -> Path:
    """Write a safetensors file whose header says whatever the test wants; bytes are taken as they are."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + payload)
    return path


def write_sharded(folder: Path, tensors: Mapping[str, NDArray[Any]], num_shards: int) -> Path:
    """Deal the tensors out to shards in turn, and write them with their index."""
    weight_map = {}
    for i in range(num_shards):
        shard = f"model-{i + 1:05d}-of-{num_shards:05d}.safetensors"
        part = dict(list(tensors.items())[i::num_shards])
        write_safetensors(folder / shard, part, {"format": "pt"})
        weight_map.update(dict.fromkeys(part, shard))
    write_index(folder, weight_map)
    return folder


def write_index(folder: Path, weight_map: object, name: str = "model.safetensors.index.json") -> Path:
    path = folder / name
    path.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return path


def llama_tensors(config: Mapping[str, Any] = TINY_LLAMA, dtype: str = "BF16", seed: int = 0) -> dict[str, Any]:
    """Gaussian weights under the names of a Llama model, as arrays of the dtype (BF16, F16 or F32)."""
    rng = np.random.default_rng(seed)
    hidden, middle = config["hidden_size"], config["intermediate_size"]
    head = hidden // config["num_attention_heads"]
    kv = head * config["num_key_value_heads"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
    }
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        shapes |= {
            f"{prefix}input_layernorm.weight": (hidden,),
            f"{prefix}post_attention_layernorm.weight": (hidden,),
            f"{prefix}self_attn.q_proj.weight": (hidden, hidden),
            f"{prefix}self_attn.k_proj.weight": (kv, hidden),
            f"{prefix}self_attn.v_proj.weight": (kv, hidden),
            f"{prefix}self_attn.o_proj.weight": (hidden, hidden),
            f"{prefix}mlp.gate_proj.weight": (middle, hidden),
            f"{prefix}mlp.up_proj.weight": (middle, hidden),
            f"{prefix}mlp.down_proj.weight": (hidden, middle),
        }
    return {
        name: (np.ones(shape) if name.endswith("norm.weight") else rng.standard_normal(shape) / np.sqrt(hidden)).astype(
            _FLOATS[dtype]
        )
        for name, shape in shapes.items()
    }


def write_tiny_llama(
    folder: Path,
    *,
    dtype: str = "BF16",
    num_shards: int = 1,
    seed: int = 0,
    with_tokenizer: bool = True,
    **config_changes: Any,
) -> Path:
    """Write a whole model folder: config, tokenizer, and weights in one file or in shards with an index."""
    folder.mkdir(parents=True, exist_ok=True)
    config = TINY_LLAMA | config_changes
    tensors = llama_tensors(config, dtype, seed)
    if num_shards == 1:
        write_safetensors(folder / "model.safetensors", tensors, {"format": "pt"})
    else:
        write_sharded(folder, tensors, num_shards)
    torch_dtype = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}[dtype]
    (folder / "config.json").write_text(json.dumps(config | {"torch_dtype": torch_dtype}, indent=2))
    (folder / "generation_config.json").write_text(json.dumps({"bos_token_id": 1, "eos_token_id": 2}))
    if with_tokenizer:
        write_tiny_tokenizer(folder / "tokenizer.json", config["vocab_size"])
    return folder


def write_tiny_tokenizer(path: Path, vocab_size: int) -> Path:
    """Write a tokenizer of single printable ASCII characters after <unk>, <s> and </s>, at most 98 tokens."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    characters = ["<unk>", "<s>", "</s>", *map(chr, range(32, 127))]
    vocabulary = {text: token_id for token_id, text in enumerate(characters[:vocab_size])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(path))
    return path
