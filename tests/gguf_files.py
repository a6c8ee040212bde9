"""GGUF files for the tests: whole models written by the gguf library (never by mxconv), and raw ones that lie."""

import math
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf
import numpy as np
from ml_dtypes import bfloat16

HIDDEN, INNER, HEADS, KV_HEADS, VOCABULARY = 64, 96, 4, 2, 40
# the names of these tensors in a checkpoint
NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output.weight": "lm_head.weight",
    "output_norm.weight": "model.norm.weight",
    "blk.0.attn_norm.weight": "model.layers.0.input_layernorm.weight",
    "blk.0.attn_q.weight": "model.layers.0.self_attn.q_proj.weight",
    "blk.0.attn_k.weight": "model.layers.0.self_attn.k_proj.weight",
    "blk.0.attn_v.weight": "model.layers.0.self_attn.v_proj.weight",
    "blk.0.attn_output.weight": "model.layers.0.self_attn.o_proj.weight",
    "blk.0.ffn_norm.weight": "model.layers.0.post_attention_layernorm.weight",
    "blk.0.ffn_gate.weight": "model.layers.0.mlp.gate_proj.weight",
    "blk.0.ffn_up.weight": "model.layers.0.mlp.up_proj.weight",
    "blk.0.ffn_down.weight": "model.layers.0.mlp.down_proj.weight",
}


def own_name(name: str) -> str:
    """Of a tensor of any layer, in a checkpoint."""
    if not name.startswith("blk."):
        return NAMES[name]
    layer, _, rest = name.removeprefix("blk.").partition(".")
    return NAMES[f"blk.0.{rest}"].replace("layers.0.", f"layers.{layer}.")


def tensors(seed: int = 0, layers: int = 1, hidden: int = HIDDEN, inner: int = INNER) -> dict[str, np.ndarray]:
    """Values of a tiny llama under GGUF's names, in GGUF's row order."""
    rng = np.random.default_rng(seed)
    kv = hidden // HEADS * KV_HEADS
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (VOCABULARY, hidden),
        "output.weight": (VOCABULARY, hidden),
        "output_norm.weight": (hidden,),
    }
    for layer in range(layers):
        shapes |= {
            f"blk.{layer}.attn_norm.weight": (hidden,),
            f"blk.{layer}.attn_q.weight": (hidden, hidden),
            f"blk.{layer}.attn_k.weight": (kv, hidden),
            f"blk.{layer}.attn_v.weight": (kv, hidden),
            f"blk.{layer}.attn_output.weight": (hidden, hidden),
            f"blk.{layer}.ffn_norm.weight": (hidden,),
            f"blk.{layer}.ffn_gate.weight": (inner, hidden),
            f"blk.{layer}.ffn_up.weight": (inner, hidden),
            f"blk.{layer}.ffn_down.weight": (hidden, inner),
        }
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def write_gguf(
    path: Path,
    values: Mapping[str, np.ndarray] | None = None,
    matrix_type: str = "BF16",
    architecture: str = "llama",
    change: Callable[[dict[str, Any]], object] = lambda keys: None,
    types: Mapping[str, str] = MappingProxyType({}),
) -> Path:
    """A model of `tensors`; `change` edits the keys, by their names without the architecture's.

    `types` names the types of single matrices. A type that the library cannot quantize gets `random_blocks`.
    """
    keys: dict[str, Any] = {
        "context_length": 128,
        "embedding_length": HIDDEN,
        "block_count": 1,
        "feed_forward_length": INNER,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.layer_norm_rms_epsilon": 1e-5,
    }
    change(keys)
    writer = gguf.GGUFWriter(path, architecture)
    for name, value in keys.items():
        _add(writer, name if name.startswith(("tokenizer.", "general.")) else f"{architecture}.{name}", value)
    for name, array in (tensors() if values is None else values).items():
        kind = gguf.GGMLQuantizationType["F32" if array.ndim == 1 else types.get(name, matrix_type)]
        if kind.name == "F32":
            writer.add_tensor(name, array)
        elif kind.name == "F16":
            writer.add_tensor(name, array.astype(np.float16))
        elif kind.name == "BF16":
            writer.add_tensor(name, array.astype(bfloat16).view(np.uint8), raw_dtype=kind)
        else:
            writer.add_tensor(name, _blocks(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _blocks(array: np.ndarray, kind: gguf.GGMLQuantizationType) -> np.ndarray:
    try:
        return gguf.quants.quantize(array, kind)
    except NotImplementedError:
        return random_blocks(kind, array.shape)


def random_blocks(kind: gguf.GGMLQuantizationType, shape: tuple[int, ...]) -> np.ndarray:
    """Rows of random blocks in which the library finds numbers of moderate size."""
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    rng, count = np.random.default_rng(kind.value), math.prod(shape) // block
    found: list[np.ndarray] = []
    while sum(map(len, found)) < count:
        blocks = rng.integers(0, 256, (2 * count, block_bytes), dtype=np.uint8)
        with np.errstate(all="ignore"):
            values = gguf.quants.dequantize(blocks, kind)
            found.append(blocks[(np.abs(values) < 1000).all(axis=1)])
    return np.concatenate(found)[:count].reshape(*shape[:-1], -1)


def _add(writer: gguf.GGUFWriter, name: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(name, value)
    elif isinstance(value, int):
        writer.add_uint32(name, value)
    elif isinstance(value, float):
        writer.add_float32(name, value)
    elif isinstance(value, str):
        writer.add_string(name, value)
    else:
        writer.add_array(name, value)


def text(value: str | bytes) -> bytes:
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(raw)) + raw


def key(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def tensor(name: str, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    """In the file the dimensions stand backwards."""
    dimensions = b"".join(struct.pack("<Q", n) for n in reversed(shape))
    return text(name) + struct.pack("<I", len(shape)) + dimensions + struct.pack("<IQ", kind, offset)


def raw_gguf(
    keys: list[bytes],
    infos: list[bytes],
    payload: bytes = b"",
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    num_keys: int | None = None,
    num_tensors: int | None = None,
) -> bytes:
    head = magic + struct.pack(
        "<IQQ", version, len(infos) if num_tensors is None else num_tensors, len(keys) if num_keys is None else num_keys
    )
    head += b"".join(keys) + b"".join(infos)
    return head + bytes(-len(head) % 32) + payload
