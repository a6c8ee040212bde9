"""EAGLE-3 and DFlash heads with random weights on disk, in the format of the `speculators` package."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import safetensors.numpy
from checkpoints import write_safetensors
from reader_levels import open_reader

from mxconv.codecs.float16 import FP16
from mxconv.drafts.dflash import Dflash
from mxconv.drafts.eagle3 import Eagle3
from mxconv.engine.matrices import Matrices
from mxconv.kernels.engine import choose_engine

DTYPES = {"BF16": ml_dtypes.bfloat16, "F16": np.float16}


def eagle3_config(
    vocab_size: int, hidden_size: int, changes: dict[str, Any] | None = None, layer: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "draft_vocab_size": vocab_size,
        "norm_before_residual": False,
        "eagle_aux_hidden_state_layer_ids": None,
        "target_hidden_size": None,
        "transformer_layer_config": {
            "model_type": "llama",
            "vocab_size": vocab_size,
            "hidden_size": hidden_size,
            "intermediate_size": 40,
            "num_hidden_layers": 1,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 128,
            "rms_norm_eps": 1e-5,
        }
        | (layer or {}),
    } | (changes or {})


def dflash_config(vocab_size: int, hidden_size: int, changes: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "architectures": ["DFlashDraftModel"],
        "speculators_model_type": "dflash",
        "speculators_version": "0.9.0",
        "aux_hidden_state_layer_ids": [0, 2, 3],
        "block_size": 5,
        "draft_vocab_size": vocab_size,
        "mask_token_id": 1,
        "transformer_layer_config": {
            "model_type": "qwen3",
            "vocab_size": vocab_size,
            "hidden_size": hidden_size,
            "intermediate_size": 40,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "max_position_embeddings": 128,
            "rms_norm_eps": 1e-5,
        },
    } | (changes or {})


def eagle3_tensors(config: dict[str, Any], known: Sequence[int] | None = None, seed: int = 0) -> dict[str, np.ndarray]:
    """As the format names them.

    Args:
        config: of the head.
        known: the target's ids of its tokens, where it has a vocabulary of its own.
        seed: of all weights.
    """
    layer = config["transformer_layer_config"]
    size, read = layer["hidden_size"], config["target_hidden_size"] or layer["hidden_size"]
    num_states = len(config["eagle_aux_hidden_state_layer_ids"] or range(3))
    shapes: dict[str, tuple[int, ...]] = {
        "embed_tokens.weight": (layer["vocab_size"], size),
        "fc.weight": (size, num_states * read),
        "layers.0.hidden_norm.weight": (size,),
        "norm.weight": (size,),
        "lm_head.weight": (config["draft_vocab_size"], size),
    }
    if config.get("norm_before_fc"):
        shapes["input_norm.weight"] = (num_states * read,)
    if config.get("fc_norm"):
        shapes |= {f"fc_norm.{place}.weight": (read,) for place in range(num_states)}
    for index in range(layer["num_hidden_layers"]):
        shapes |= _layer_shapes(f"layers.{index}", layer, size if index else 2 * size)
    return _random(shapes, layer["vocab_size"], known, seed)


def dflash_tensors(config: dict[str, Any], known: Sequence[int] | None = None) -> dict[str, np.ndarray]:
    """The same of a DFlash head."""
    layer = config["transformer_layer_config"]
    size = layer["hidden_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (size, len(config["aux_hidden_state_layer_ids"]) * size),
        "hidden_norm.weight": (size,),
        "norm.weight": (size,),
    }
    for index in range(layer["num_hidden_layers"]):
        shapes |= _layer_shapes(f"layers.{index}", layer, size)
    if known is not None:
        shapes["lm_head.weight"] = (len(known), size)
    return _random(shapes, layer["vocab_size"], known, 0)


def _layer_shapes(name: str, layer: dict[str, Any], num_read: int) -> dict[str, tuple[int, ...]]:
    size, heads, kv_heads = layer["hidden_size"], layer["num_attention_heads"], layer["num_key_value_heads"]
    head = layer.get("head_dim") or (128 if layer["model_type"] == "qwen3" else size // heads)
    rows = {"q": heads * head, "k": kv_heads * head, "v": kv_heads * head}
    shapes: dict[str, tuple[int, ...]] = {
        f"{name}.self_attn.{part}_proj.weight": (count, num_read) for part, count in rows.items()
    }
    if layer.get("attention_bias"):
        shapes |= {f"{name}.self_attn.{part}_proj.bias": (count,) for part, count in (rows | {"o": size}).items()}
    if layer["model_type"] == "qwen3":
        shapes |= {f"{name}.self_attn.{part}_norm.weight": (head,) for part in "qk"}
    return shapes | {
        f"{name}.self_attn.o_proj.weight": (size, heads * head),
        f"{name}.mlp.gate_proj.weight": (layer["intermediate_size"], size),
        f"{name}.mlp.up_proj.weight": (layer["intermediate_size"], size),
        f"{name}.mlp.down_proj.weight": (size, layer["intermediate_size"]),
        f"{name}.input_layernorm.weight": (size,),
        f"{name}.post_attention_layernorm.weight": (size,),
    }


def _random(
    shapes: dict[str, tuple[int, ...]], vocab_size: int, known: Sequence[int] | None, seed: int
) -> dict[str, np.ndarray]:
    rng, tensors = np.random.default_rng(seed), dict[str, np.ndarray]()
    for name, shape in shapes.items():
        noise = rng.standard_normal(shape).astype(np.float32)
        scale = 0.25 if len(shape) == 1 else 1.0 if name.startswith("embed") else 1.5 / np.sqrt(shape[1])
        tensors[name] = noise * np.float32(scale) + np.float32(len(shape) == 1 and not name.endswith("bias"))
    if known is not None:
        marks = np.zeros(vocab_size, bool)
        marks[list(known)] = True
        tensors |= {"d2t": np.array(known, np.int64) - np.arange(len(known)), "t2d": marks}
    return tensors


def write_eagle3(
    folder: Path, config: dict[str, Any], dtype: str = "F16", known: Sequence[int] | None = None, seed: int = 0
) -> Path:
    return write_tensors(folder, config, halves(eagle3_tensors(config, known, seed), dtype))


def write_dflash(folder: Path, config: dict[str, Any], dtype: str = "F16", known: Sequence[int] | None = None) -> Path:
    return write_tensors(folder, config, halves(dflash_tensors(config, known), dtype))


def halves(tensors: Mapping[str, np.ndarray], dtype: str = "F16") -> dict[str, np.ndarray]:
    """All floats in 16 bits; tables stay."""
    return {name: array.astype(DTYPES[dtype]) if array.dtype.kind == "f" else array for name, array in tensors.items()}


def write_tensors(folder: Path, config: dict[str, Any], tensors: dict[str, np.ndarray]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


def _target(**matrices: Any) -> Any:
    return SimpleNamespace(config=SimpleNamespace(num_hidden_layers=8), **matrices)


def open_eagle3(folder: Path, kernel: str = "numpy") -> Eagle3:
    """A head in 16 bits for a target of eight layers, alone."""
    head: Eagle3 = open_reader("eagle3", folder, kernel, _target(embedding=None))
    head.grower = None
    return head


def open_dflash(folder: Path, kernel: str = "numpy") -> Dflash:
    """A head of the vectors, below a target of eight layers whose embedding and output head are beside it."""
    beside = safetensors.numpy.load_file(folder / "expected.safetensors")
    make = Matrices(choose_engine(kernel))
    given = {
        name: make.dense(beside[name].astype(np.float16).view(np.uint16), FP16) if name in beside else None
        for name in ("embedding", "head")
    }
    head: Dflash = open_reader("dflash", folder, kernel, _target(**given))
    return head
