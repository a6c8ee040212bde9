"""Keys that only some families have in config.json, from the keys and tensors of a GGUF file.

Constants are what llama.cpp's model of the family has of itself, and a file does not say.
"""

from collections.abc import Callable, Mapping
from typing import Any

from mxconv.gguf.gguf_header import ReadKeys

Config = dict[str, Any]
More = Callable[[ReadKeys, Config], Config]

# families whose heads may rotate in part
ROTATED_IN_PART = {"glm4", "glm4_moe", "gpt_neox", "phi3", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next"}
EPS, LAYER_EPS = "rms_norm_eps", "layer_norm_eps"
GEMMA = {"hidden_act": "hidden_activation"}
LOCAL = {"num_experts": "num_local_experts"}
RENAMED: Mapping[str, Mapping[str, str]] = {  # usual keys, and a family's own names for them
    "cohere2": {EPS: LAYER_EPS},
    "gemma2": GEMMA,
    "gemma3_text": GEMMA,
    "gemma4_text": GEMMA,
    "glm4_moe": {"num_experts": "n_routed_experts"},
    "gpt2": {
        "hidden_size": "n_embd",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "max_position_embeddings": "n_positions",
        "intermediate_size": "n_inner",
        "hidden_act": "activation_function",
        EPS: "layer_norm_epsilon",
    },
    "gpt_neox": {"rope_theta": "rotary_emb_base", EPS: LAYER_EPS, "partial_rotary_factor": "rotary_pct"},
    "gpt_oss": LOCAL,
    "granitemoe": LOCAL,
    "granitemoehybrid": LOCAL,
    "lfm2": {EPS: "norm_eps"},
    "llama4_text": LOCAL,
    "mamba2": {EPS: "layer_norm_epsilon"},
    "mixtral": LOCAL,
    "starcoder2": {EPS: "norm_epsilon"},
}


def _gemma2(keys: ReadKeys, config: Config) -> Config:
    caps = ("attn_logit_softcapping", "final_logit_softcapping")
    return _scalar(config, 46) | {cap: keys.number_or_none(cap) for cap in caps}


def _gemma3(keys: ReadKeys, config: Config) -> Config:
    cap = "final_logit_softcapping"
    near = keys.number("rope.freq_base_swa", 10000.0)
    return _scalar(config, 62) | {cap: keys.number_or_none(cap), "rope_local_base_freq": near}


def _scalar(config: Config, depth_of_27b: int) -> Config:
    """llama.cpp knows the models of 27 B, which divide scores by another root, by their depth."""
    is_27b = config["num_hidden_layers"] == depth_of_27b
    filled = config["hidden_size"] // config["num_attention_heads"]
    return {"query_pre_attn_scalar": filled if is_27b else config["head_dim"]}


def _gemma4(keys: ReadKeys, config: Config) -> Config:
    num_layers, slides = config["num_hidden_layers"], [kind[0] == "s" for kind in config.get("layer_types", ())]
    heads = keys.sizes("attention.head_count_kv")
    by_kind = dict(zip(slides, heads * (num_layers if len(heads) == 1 else 1), strict=False))
    num_shared = keys.count("attention.shared_kv_layers")
    table = keys.tensors.get("per_layer_token_embd.weight")
    values = [f"blk.{layer}.attn_v.weight" in keys.tensors for layer in range(num_layers - num_shared)]
    far, scaling = config.pop("rope_theta"), config.pop("rope_scaling")
    return {
        "head_dim": keys.size("attention.key_length_swa", config["head_dim"]),
        "global_head_dim": config["head_dim"],
        "num_key_value_heads": by_kind.get(True, max(heads)),
        "num_global_key_value_heads": by_kind.get(False, max(heads)),
        "attention_k_eq_v": not all(values),
        "num_kv_shared_layers": num_shared,
        "use_double_wide_mlp": len(set(keys.sizes("feed_forward_length"))) > 1,
        "hidden_size_per_layer_input": keys.count("embedding_length_per_layer_input"),
        "vocab_size_per_layer_input": config["vocab_size"] if table is None else table.shape[0],
        "final_logit_softcapping": keys.number_or_none("final_logit_softcapping"),
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": keys.number("rope.freq_base_swa", 10000.0)},
            "full_attention": {"rope_theta": far} | (scaling or {"rope_type": "default"}),
        },
    }


def _granite(keys: ReadKeys, config: Config) -> Config:
    return {
        "attention_multiplier": keys.number("attention.scale", 1.0),
        "embedding_multiplier": keys.number("embedding_scale", 1.0),
        "residual_multiplier": keys.number("residual_scale", 1.0),
        "logits_scaling": keys.number("logit_scale", 1.0),
    }


def _granite_hybrid(keys: ReadKeys, config: Config) -> Config:
    inner, heads = keys.size("ssm.inner_size"), keys.size("ssm.time_step_rank")
    has_experts = "num_experts" in config
    shared = keys.size("expert_shared_feed_forward_length" if has_experts else "feed_forward_length")
    return _granite(keys, config) | {
        "num_experts": config.get("num_experts", 0),
        "num_experts_per_tok": config.get("num_experts_per_tok", 0),
        "shared_intermediate_size": shared,
        "layer_types": _kinds(keys, config, "mamba", "attention"),
        "position_embedding_type": "rope" if keys.get("rope.scaling.finetuned") else "nope",
        "mamba_n_heads": heads,
        "mamba_d_head": inner // heads,
        "mamba_d_state": keys.size("ssm.state_size"),
        "mamba_n_groups": keys.size("ssm.group_count"),
        "mamba_d_conv": keys.size("ssm.conv_kernel"),
        "mamba_expand": inner // config["hidden_size"],
        "mamba_proj_bias": False,
        "mamba_conv_bias": True,
    }


def _kinds(keys: ReadKeys, config: Config, state: str, attention: str) -> list[str]:
    """The kind of each layer: one without keys has a state."""
    heads = keys.sizes("attention.head_count_kv")
    heads = heads * config["num_hidden_layers"] if len(heads) == 1 else heads
    return [attention if count else state for count in heads]


def _mamba2(keys: ReadKeys, config: Config) -> Config:
    inner, heads = keys.size("ssm.inner_size"), keys.size("ssm.time_step_rank")
    return {
        "num_heads": heads,
        "head_dim": inner // heads,
        "expand": inner // config["hidden_size"],
        "state_size": keys.size("ssm.state_size"),
        "n_groups": keys.size("ssm.group_count"),
        "conv_kernel": keys.size("ssm.conv_kernel"),
        "use_bias": False,
        "use_conv_bias": True,
    }


def _delta_net(keys: ReadKeys, config: Config) -> Config:
    recurs = keys.flags("attention.recurrent_layers", config["num_hidden_layers"])
    heads = keys.size("ssm.time_step_rank")
    found: Config = {
        "linear_num_key_heads": keys.size("ssm.group_count"),
        "linear_num_value_heads": heads,
        "linear_key_head_dim": keys.size("ssm.state_size"),
        "linear_value_head_dim": keys.size("ssm.inner_size") // heads,
        "linear_conv_kernel_dim": keys.size("ssm.conv_kernel"),
    }
    if recurs is not None:
        found["layer_types"] = ["linear_attention" if each else "full_attention" for each in recurs]
    return found | (_gated_experts(keys, config) if "num_experts" in config else {})


def _own_size(keys: ReadKeys, config: Config) -> Config:
    return {"moe_intermediate_size": keys.size("expert_feed_forward_length"), "norm_topk_prob": True}


def _gated_experts(keys: ReadKeys, config: Config) -> Config:
    shared = keys.size("expert_shared_feed_forward_length")
    return _own_size(keys, config) | {"shared_expert_intermediate_size": shared}


def _glm4_moe(keys: ReadKeys, config: Config) -> Config:
    return _own_size(keys, config) | {
        "norm_topk_prob": bool(keys.get("expert_weights_norm")),
        "routed_scaling_factor": keys.number("expert_weights_scale", 1.0),
        "first_k_dense_replace": keys.count("leading_dense_block_count"),
        "n_shared_experts": keys.count("expert_shared_count"),
        "n_group": 1,
        "topk_group": 1,
        "use_qk_norm": "blk.0.attn_q_norm.weight" in keys.tensors,
    }


def _gpt_oss(keys: ReadKeys, config: Config) -> Config:
    return {"intermediate_size": keys.size("expert_feed_forward_length"), "swiglu_limit": 7.0}


def _llama4(keys: ReadKeys, config: Config) -> Config:
    step = keys.size("interleave_moe_layer_step", 1)
    return {
        "intermediate_size": keys.size("expert_feed_forward_length"),
        "intermediate_size_mlp": keys.sizes("feed_forward_length")[0],
        "interleave_moe_layer_step": step,
        "use_qk_norm": config["num_experts"] != 128,  # llama.cpp knows the model without these norms by its experts
        "attention_chunk_size": 8192,
        "floor_scale": 8192,
        "attn_scale": 0.1,
    }


def _lfm2(keys: ReadKeys, config: Config) -> Config:
    return {
        "layer_types": _kinds(keys, config, "conv", "full_attention"),
        "conv_L_cache": keys.size("shortconv.l_cache"),
        "conv_bias": False,
        "block_auto_adjust_ff_dim": False,
    }


def _phi3(keys: ReadKeys, config: Config) -> Config:
    original = "original_max_position_embeddings"
    scaling = config["rope_scaling"] or {}
    return {original: scaling.get(original, config["max_position_embeddings"]), "sliding_window": None}


def _ministral3(keys: ReadKeys, config: Config) -> Config:
    """The temperature of queries lies among their rotations' parameters."""
    beta, original = keys.number_or_none("attention.temperature_scale"), "rope.scaling.original_context_length"
    if beta is None:
        return {}
    own = {"llama_4_scaling_beta": beta, "original_max_position_embeddings": keys.size(original)}
    return {"rope_scaling": (config["rope_scaling"] or {"rope_type": "default"}) | own}


MORE_KEYS: Mapping[str, More] = {
    "cohere2": lambda keys, config: {"logit_scale": keys.number("logit_scale", 1.0)},
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "gemma4_text": _gemma4,
    "glm4_moe": _glm4_moe,
    "gpt2": lambda keys, config: {"hidden_act": "gelu_new"},
    "gpt_neox": lambda keys, config: {
        "hidden_act": "gelu",
        "use_parallel_residual": keys.get("use_parallel_residual") is not False,
    },
    "gpt_oss": _gpt_oss,
    "granite": _granite,
    "granitemoe": _granite,
    "granitemoehybrid": _granite_hybrid,
    "lfm2": _lfm2,
    "llama4_text": _llama4,
    "mamba2": _mamba2,
    "ministral3": _ministral3,
    "phi3": _phi3,
    "qwen2_moe": lambda keys, config: (
        _gated_experts(keys, config) | {"norm_topk_prob": False, "qkv_bias": config["attention_bias"]}
    ),
    "qwen3_5_moe_text": _delta_net,
    "qwen3_5_text": _delta_net,
    "qwen3_moe": _own_size,
    "qwen3_next": _delta_net,
    "seed_oss": lambda keys, config: {"attention_out_bias": "blk.0.attn_output.bias" in keys.tensors},
    "starcoder2": lambda keys, config: {"use_bias": config["attention_bias"]},
}
