"""The config.json that a GGUF file's keys and tensors stand for."""

from collections.abc import Mapping
from math import isfinite, prod
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from mxconv.checkpoint.gguf.header import GgufEntry
from mxconv.checkpoint.gguf.names import EMBEDDING, HEAD
from mxconv.checkpoint.gguf.rope_factors import llama3_factors
from mxconv.errors import CheckpointError

CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
MAX_SIZE = 2**31 - 1
LOW_FREQ_FACTOR, HIGH_FREQ_FACTOR, ORIGINAL_POSITIONS = 1.0, 4.0, 8192  # of every Llama 3 since 3.1
END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
TORCH_DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


def derive_config(
    values: Mapping[str, Any], tensors: Mapping[str, GgufEntry], rope_factors: NDArray[Any] | None, path: Path
) -> dict[str, Any]:
    """What config.json would say.

    Args:
        values: the file's keys.
        tensors: by GGUF's names.
        rope_factors: `rope_freqs.weight`, if the file has it.
        path: for messages.

    Raises:
        CheckpointError: the architecture is another one, or a key is missing, ill-typed or not supported.
    """
    keys = _Keys(values, path)
    embedding = tensors.get(EMBEDDING)
    if embedding is None or len(embedding.shape) != 2:
        raise CheckpointError(f"{path}: has no matrix {EMBEDDING}; a whole model is required. {_REMEDY}")
    heads, hidden = keys.size("attention.head_count"), keys.size("embedding_length")
    head_dim = keys.size("attention.key_length", hidden // heads)
    if head_dim % 2:
        keys.reject("attention.key_length", f"RoPE rotates pairs, so an even length is required, not {head_dim}")
    for key in ("attention.value_length", "rope.dimension_count"):
        if keys.size(key, head_dim) != head_dim:
            keys.reject(key, f"the length of a head, {head_dim}, is required")
    model_type = str(values["general.architecture"])
    config: dict[str, Any] = {
        "architectures": [CLASSES[model_type]],
        "model_type": model_type,
        "hidden_size": hidden,
        "intermediate_size": keys.size("feed_forward_length"),
        "num_hidden_layers": keys.size("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": keys.size("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "vocab_size": embedding.shape[0],
        "max_position_embeddings": keys.size("context_length"),
        "rms_norm_eps": keys.number("attention.layer_norm_rms_epsilon"),
        "rope_theta": keys.number("rope.freq_base", 10000.0),
        "hidden_act": "silu",
        "tie_word_embeddings": HEAD not in tensors,
        "torch_dtype": TORCH_DTYPES[_main_type(tensors)],
    }
    if model_type == "llama":
        config["attention_bias"] = "blk.0.attn_q.bias" in tensors
        config["mlp_bias"] = "blk.0.ffn_up.bias" in tensors
    if model_type == "qwen3":
        config["attention_bias"] = "blk.0.attn_q.bias" in tensors
    config["rope_scaling"] = _rope_scaling(keys, config, rope_factors)
    return config | special_token_ids(values)


def special_token_ids(values: Mapping[str, Any]) -> dict[str, Any]:
    """bos_token_id and eos_token_id, as far as the file names them; several ends make a list."""
    ids: dict[str, Any] = {}
    first = values.get("tokenizer.ggml.bos_token_id")
    if type(first) is int:
        ids["bos_token_id"] = first
    ends = [values.get(f"tokenizer.ggml.{key}") for key in END_KEYS]
    found = list(dict.fromkeys(token_id for token_id in ends if type(token_id) is int))
    if found:
        ids["eos_token_id"] = found[0] if len(found) == 1 else found
    return ids


def _rope_scaling(keys: "_Keys", config: dict[str, Any], factors: NDArray[Any] | None) -> dict[str, Any] | None:
    kind = keys.values.get(keys.name("rope.scaling.type"), "none")
    if kind == "linear":
        return {"rope_type": "linear", "factor": keys.number("rope.scaling.factor")}
    if kind not in ("none", ""):
        keys.reject("rope.scaling.type", "none, linear, or the factors of Llama 3.1 are supported")
    if factors is None:
        return None
    original = keys.size("rope.scaling.original_context_length", ORIGINAL_POSITIONS)
    found = factors.astype(np.float32)
    factor = float(found.max(initial=1.0))
    if isfinite(factor) and factor >= 1 and found.shape == (config["head_dim"] // 2,):
        expected = llama3_factors(
            config["head_dim"], config["rope_theta"], factor, LOW_FREQ_FACTOR, HIGH_FREQ_FACTOR, original
        )
        if np.allclose(found, expected, rtol=1e-5, atol=0):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": LOW_FREQ_FACTOR,
                "high_freq_factor": HIGH_FREQ_FACTOR,
                "original_max_position_embeddings": original,
            }
    raise CheckpointError(
        f"{keys.path}: rope_freqs.weight of {list(found.shape)} up to {factor:g} are not the factors of Llama 3.1 with "
        f"{original} original positions; only these are known by their parameters. {_REMEDY}"
    )


def _main_type(tensors: Mapping[str, GgufEntry]) -> str:
    weights: dict[str, int] = {}
    for entry in tensors.values():
        weights[entry.type.dtype] = weights.get(entry.type.dtype, 0) + prod(entry.shape)
    return max(weights, key=lambda name: weights[name])


_REMEDY = "Convert the model from its original checkpoint."


class _Keys:
    """The keys of an architecture, checked."""

    def __init__(self, values: Mapping[str, Any], path: Path) -> None:
        self.values, self.path = values, path
        self._architecture = values.get("general.architecture")
        if self._architecture not in CLASSES:
            raise CheckpointError(
                f"{path}: general.architecture is {str(self._architecture)[:80]!r}; one of {', '.join(CLASSES)} is "
                f"required. {_REMEDY}"
            )

    def name(self, key: str) -> str:
        return f"{self._architecture}.{key}"

    def size(self, key: str, default: int | None = None) -> int:
        value = self.values.get(self.name(key), default)
        if type(value) is not int or not 0 < value <= MAX_SIZE:
            self.reject(key, f"an integer from 1 to {MAX_SIZE} is required")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.values.get(self.name(key), default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not isfinite(value) or value <= 0:
            self.reject(key, "a finite number above 0 is required")
        # float32 in the file: the shortest decimal that gives it back, as people wrote it
        return float(str(np.float32(value)))

    def reject(self, key: str, required: str) -> NoReturn:
        name = self.name(key)
        found = f"{name} is {str(self.values[name])[:80]}" if name in self.values else f"{name} is missing"
        raise CheckpointError(f"{self.path}: {found}; {required}. {_REMEDY}")
