"""The config.json that a GGUF file's keys and tensors stand for: the inverse of what the export writes.

What the file does not say is what the architecture's published models have; `docs/interop.md` lists it.
"""

from collections import Counter
from collections.abc import Iterable
from math import prod
from typing import Any

from mxconv.errors import CheckpointError
from mxconv.gguf.architectures import ARCHITECTURES, Architecture
from mxconv.gguf.family_keys import MORE_KEYS, RENAMED, ROTATED_IN_PART
from mxconv.gguf.gguf_header import REMEDY, GgufEntry, ReadKeys
from mxconv.gguf.gguf_tokenizer import special_token_ids
from mxconv.gguf.name_map import EMBEDDING
from mxconv.gguf.rotations import Factors, rope_section

TORCH_DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
HIDDEN_ACTS = {"silu": "silu", "relu2": "relu2", "gelu_tanh": "gelu_pytorch_tanh", "gelu": "gelu"}
CLASSES = {  # what comes before ForCausalLM, where it is not the model type with capitals
    "gemma3_text": "Gemma3",
    "gemma4_text": "Gemma4",
    "gpt_neox": "GPTNeoX",
    "granitemoe": "GraniteMoe",
    "granitemoehybrid": "GraniteMoeHybrid",
    "hunyuan_v1_dense": "HunYuanDenseV1",
    "llama4_text": "Llama4",
    "qwen3_5_text": "Qwen3_5",
    "qwen3_5_moe_text": "Qwen3_5Moe",
    "smollm3": "SmolLM3",
}


def derive_config(keys: ReadKeys, factors: Factors, is_tied: bool) -> dict[str, Any]:
    """The content of config.json; `factors` gives a tensor of rotations, if the file has it.

    Raises:
        CheckpointError: the architecture is another one, or a key is missing, ill-typed or not supported.
    """
    model_type = model_type_of(keys)
    architecture = ARCHITECTURES[model_type]
    embedding = keys.tensors.get(EMBEDDING)
    if embedding is None or len(embedding.shape) != 2:
        raise CheckpointError(f"{keys.path}: has no matrix {EMBEDDING}; a whole model is required. {REMEDY}")
    config: dict[str, Any] = {
        "architectures": [_class(model_type)],
        "model_type": model_type,
        "hidden_size": keys.size("embedding_length"),
        "num_hidden_layers": keys.size("block_count"),
        "vocab_size": embedding.shape[0],
        "max_position_embeddings": keys.size("context_length"),
        "tie_word_embeddings": is_tied,
        "torch_dtype": TORCH_DTYPES[main_type(keys.tensors.values())],
        "pad_token_id": None,
    }
    is_rms = keys.has("attention.layer_norm_rms_epsilon") or not keys.has("attention.layer_norm_epsilon")
    config["rms_norm_eps"] = keys.number(f"attention.layer_norm_{'rms_' if is_rms else ''}epsilon")
    config["hidden_act"] = HIDDEN_ACTS[architecture.activation]
    if keys.get("feed_forward_length") != 0:  # of layers without MLPs
        config["intermediate_size"] = keys.sizes("feed_forward_length")[0]
    if keys.get("attention.head_count") != 0 or architecture.state != "mamba2":
        config |= _attention(keys, config, architecture, factors)
    if keys.has("expert_count"):
        config |= {"num_experts": keys.size("expert_count"), "num_experts_per_tok": keys.size("expert_used_count")}
    if model_type in MORE_KEYS:
        config |= MORE_KEYS[model_type](keys, config)
    renamed = RENAMED.get(model_type, {})
    config = {renamed.get(key, key): value for key, value in config.items()}
    return config | special_token_ids(keys.values)


def model_type_of(keys: ReadKeys) -> str:
    """The model type that comes back; of several with one name in GGUF, the one that the keys tell. Raises
    CheckpointError where mxconv does not know the architecture."""
    named = [kind for kind, architecture in ARCHITECTURES.items() if architecture.name == keys.architecture]
    if not named:
        known = ", ".join(dict.fromkeys(architecture.name for architecture in ARCHITECTURES.values()))
        raise CheckpointError(
            f"{keys.path}: general.architecture is {keys.architecture[:80]!r}; one of {known} is required. {REMEDY}"
        )
    if keys.architecture == "llama":
        return "mixtral" if keys.count("expert_count") else "llama"
    if keys.architecture == "olmo2":
        return "olmo3" if keys.has("attention.sliding_window") else "olmo2"
    return named[0]


def main_type(tensors: Iterable[GgufEntry]) -> str:
    """The dtype that most weights read as."""
    weights = Counter[str]()
    for entry in tensors:
        weights[entry.type.dtype] += prod(entry.shape)
    return weights.most_common(1)[0][0]


def _class(model_type: str) -> str:
    if model_type == "gpt2":
        return "GPT2LMHeadModel"
    return CLASSES.get(model_type, "".join(part.capitalize() for part in model_type.split("_"))) + "ForCausalLM"


def _attention(keys: ReadKeys, config: dict[str, Any], architecture: Architecture, factors: Factors) -> dict[str, Any]:
    heads, num_layers, model_type = keys.size("attention.head_count"), config["num_hidden_layers"], config["model_type"]
    head_dim = keys.size("attention.key_length", max(config["hidden_size"] // heads, 1))
    rotated = keys.size("rope.dimension_count", head_dim)
    if head_dim % 2:
        keys.reject("attention.key_length", f"RoPE rotates pairs, so an even length is required, not {head_dim}")
    if keys.size("attention.value_length", head_dim) != head_dim:
        keys.reject("attention.value_length", f"the length of a head, {head_dim}, is required")
    found: dict[str, Any] = {
        "num_attention_heads": heads,
        "num_key_value_heads": keys.size("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "attention_bias": keys.has_tensor(".attn_q.bias", ".attn_qkv.bias"),
        "mlp_bias": keys.has_tensor(".ffn_up.bias"),
    }
    if model_type in ROTATED_IN_PART:
        found["partial_rotary_factor"] = _share(rotated, head_dim)
    elif rotated != head_dim:
        keys.reject("rope.dimension_count", f"the length of a head, {head_dim}, is required")
    if architecture.windows:
        window = keys.size("attention.sliding_window") if keys.has("attention.sliding_window") else None
        found["sliding_window"] = window
        slides = keys.flags("attention.sliding_window_pattern", num_layers) if window else [False] * num_layers
        if slides is not None:
            found["layer_types"] = ["sliding_attention" if near else "full_attention" for near in slides]
    if keys.architecture == "gpt2":  # whose positions are learned
        return found
    found["rope_theta"] = keys.number("rope.freq_base", 10000.0)
    found["rope_scaling"] = rope_section(keys, architecture, head_dim, rotated, found["rope_theta"], factors)
    return found


def _share(rotated: int, head_dim: int) -> float:
    """The share of a head's values that rotate, from which as many come out again."""
    share = rotated / head_dim
    return share if int(share * head_dim) == rotated else (rotated + 0.5) / head_dim
