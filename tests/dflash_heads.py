"""DFlash heads with random weights on disk, and heads that are opened alone."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from eagle3_heads import DTYPES, write_tensors

from mxconv.checkpoint.source import open_checkpoint
from mxconv.codecs.float16 import FP16
from mxconv.drafts.dflash import Dflash
from mxconv.drafts.eagle3 import target_tokens
from mxconv.drafts.readers.dflash_config import DflashConfig
from mxconv.engine.matrices import Matrices
from mxconv.engine.stored_weights import dense_weights
from mxconv.engine.weights import ModelWeights
from mxconv.kernels.engine import choose_engine


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


def dflash_tensors(config: dict[str, Any], known: Sequence[int] | None = None, seed: int = 0) -> dict[str, np.ndarray]:
    """As the `speculators` format names them; `known` are the target's ids of its tokens, where it has its own."""
    rng, layer = np.random.default_rng(seed), config["transformer_layer_config"]
    size, vocab_size = layer["hidden_size"], layer["vocab_size"]
    queries, keys = (layer[f"num_{part}_heads"] * layer["head_dim"] for part in ("attention", "key_value"))
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (size, len(config["aux_hidden_state_layer_ids"]) * size),
        "hidden_norm.weight": (size,),
        "norm.weight": (size,),
    }
    for name in (f"layers.{index}" for index in range(layer["num_hidden_layers"])):
        rows = {"q": queries, "k": keys, "v": keys}
        shapes |= {f"{name}.self_attn.{part}_proj.weight": (count, size) for part, count in rows.items()}
        shapes |= {f"{name}.self_attn.{part}_norm.weight": (layer["head_dim"],) for part in "qk"}
        shapes |= {
            f"{name}.self_attn.o_proj.weight": (size, queries),
            f"{name}.mlp.gate_proj.weight": (layer["intermediate_size"], size),
            f"{name}.mlp.up_proj.weight": (layer["intermediate_size"], size),
            f"{name}.mlp.down_proj.weight": (size, layer["intermediate_size"]),
            f"{name}.input_layernorm.weight": (size,),
            f"{name}.post_attention_layernorm.weight": (size,),
        }
    if known is not None:
        shapes["lm_head.weight"] = (len(known), size)
    tensors: dict[str, np.ndarray] = {}
    for name, shape in shapes.items():
        scale = 0.25 if len(shape) == 1 else 1.5 / np.sqrt(shape[1])
        noise = rng.standard_normal(shape).astype(np.float32) * np.float32(scale)
        tensors[name] = noise + np.float32(len(shape) == 1 and not name.endswith("bias"))
    if known is not None:
        marks = np.zeros(vocab_size, bool)
        marks[list(known)] = True
        tensors |= {"d2t": np.array(known, np.int64) - np.arange(len(known)), "t2d": marks}
    return tensors


def write_dflash(
    folder: Path, config: dict[str, Any], dtype: str = "F16", known: Sequence[int] | None = None, seed: int = 0
) -> Path:
    tensors = dflash_tensors(config, known, seed)
    halves = {n: a.astype(DTYPES[dtype]) if a.dtype.kind == "f" else a for n, a in tensors.items()}
    return write_tensors(folder, config, halves)


def open_dflash(folder: Path, kernel: str = "numpy") -> Dflash:
    """A head of the vectors, below a target of eight layers whose embedding and output head are beside it."""
    config, tensors = DflashConfig.from_file(folder / "config.json"), open_checkpoint(folder).tensors
    weights = dense_weights(tensors, make=(make := Matrices(choose_engine(kernel))))
    beside = safetensors.numpy.load_file(folder / "expected.safetensors")
    names = {"embedding": "embed_tokens.weight", "head": "lm_head.weight"}
    given = {
        names[name]: make.dense(beside[name].astype(np.float16).view(np.uint16), FP16)
        for name in names.keys() & beside.keys()
    }
    tokens = target_tokens(tensors, config.draft_vocab_size, config.vocab_size, "head")
    matrices = {**given, **weights.matrices}
    return Dflash(config, ModelWeights(matrices, weights.vectors), tokens, config.layers_of(8), "head")
