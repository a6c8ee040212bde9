"""Tiny checkpoints of every family, made by transformers with random parameters, and what switches its parts on."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, Qwen2Config, Qwen2ForCausalLM

from mxconv.codecs.float16 import BF16

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 88,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
YARN = {"rope_type": "yarn", "rope_theta": 5000.0, "factor": 8.0, "original_max_position_embeddings": 32}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
GEMMA = {"head_dim": 16}
SLIDING = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
GEMMA3 = GEMMA | {
    "layer_types": SLIDING,
    "sliding_window": 9,
    "query_pre_attn_scalar": 24,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5000.0},
    },
}
GEMMA4 = {
    "num_hidden_layers": 6,
    "head_dim": 16,
    "global_head_dim": 24,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
    "num_kv_shared_layers": 2,
    "use_double_wide_mlp": True,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 96,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "sliding_window": 9,
    "final_logit_softcapping": 9.0,
}
PLAIN_GEMMA4 = {"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0, "attention_k_eq_v": False}
MINISTRAL = {
    "head_dim": 16,
    "sliding_window": None,
    "rope_parameters": YARN | {"llama_4_scaling_beta": 0.3, "mscale": 1.0, "mscale_all_dim": 0.5},
}
LINEAR = ["linear_attention", "linear_attention", "full_attention", "linear_attention"]
DELTA_NET = {
    "head_dim": 16,
    "layer_types": LINEAR,
    "attention_bias": True,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "linear_conv_kernel_dim": 3,
}
MAMBA2 = {
    "num_heads": 6,
    "head_dim": 16,
    "expand": 2,
    "state_size": 10,
    "n_groups": 2,
    "use_bias": True,
    "time_step_limit": [0.05, 0.9],
    "chunk_size": 8,
}
GRANITE = {"embedding_multiplier": 3.0, "attention_multiplier": 0.17, "residual_multiplier": 0.4, "logits_scaling": 2.5}
GRANITE_HYBRID = {
    "layer_types": LINEAR,
    "num_local_experts": 0,
    "shared_intermediate_size": 56,
    "mamba_n_heads": 6,
    "mamba_d_head": 16,
    "mamba_n_groups": 2,
    "mamba_d_state": 10,
    "mamba_proj_bias": True,
    "mamba_chunk_size": 8,
}
VISION = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 48}
GROUPED = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "moe_intermediate_size": 48,
    "n_shared_experts": 2,
    "routed_scaling_factor": 1.7,
    "first_k_dense_replace": 1,
}
LATENT = {
    "num_key_value_heads": 4,
    "attention_bias": True,
    "q_lora_rank": 20,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
}
LLAMA4 = {
    "head_dim": 16,
    "intermediate_size": 40,
    "intermediate_size_mlp": 88,
    "interleave_moe_layer_step": 2,
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "no_rope_layers": [1, 0, 1, 0],
    "attention_chunk_size": 9,
    "floor_scale": 5,
    "attn_scale": 0.3,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "rope_parameters": LLAMA3, "attention_bias": True, "mlp_bias": True},
    "llama, yarn": {"model_type": "llama", "rope_parameters": YARN},
    "mistral": {"model_type": "mistral", "sliding_window": 9},
    "qwen2": {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 9, "max_window_layers": 2},
    "qwen3": {"model_type": "qwen3", "head_dim": 16, "attention_bias": True},
    "gemma": {"model_type": "gemma", **GEMMA},
    "gemma2": {
        "model_type": "gemma2",
        **GEMMA,
        "sliding_window": 9,
        "query_pre_attn_scalar": 24,
        "attn_logit_softcapping": 1.5,
        "final_logit_softcapping": 8.0,
    },
    "gemma3": {"model_type": "gemma3_text", **GEMMA3, "final_logit_softcapping": 9.0},
    "gemma3, of several towers": {"model_type": "gemma3", "text_config": SIZES | GEMMA3},
    "gemma4": {"model_type": "gemma4_text", **GEMMA4},
    "gemma4, without inputs of layers": {"model_type": "gemma4_text", **GEMMA4, **PLAIN_GEMMA4},
    "gemma4, of several towers": {"model_type": "gemma4", "text_config": SIZES | GEMMA4 | {"pad_token_id": 0}},
    "phi3": {"model_type": "phi3", "sliding_window": 20},
    "phi3, LongRoPE": {
        "model_type": "phi3",
        "original_max_position_embeddings": 128,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.67,
            "short_factor": [1.0, 1.5, 2.0, 3.0],
            "long_factor": [1.0, 2.5, 4.0, 6.0],
            "original_max_position_embeddings": 128,
        },
    },
    "granite": {"model_type": "granite", **GRANITE},
    "olmo2": {"model_type": "olmo2"},
    "olmo3": {"model_type": "olmo3", "sliding_window": 9, "rope_scaling": YARN, "rope_theta": 5000.0},
    "smollm3": {"model_type": "smollm3", "no_rope_layers": [1, 0, 1, 1], "tie_word_embeddings": False},
    "smollm3, windows": {"model_type": "smollm3", "use_sliding_window": True, "sliding_window": 9},
    "mimo": {"model_type": "mimo", "num_nextn_predict_layers": 1},
    "ministral3": {"model_type": "ministral3", **MINISTRAL},
    "ministral3, of several towers": {
        "model_type": "mistral3",
        "text_config": SIZES | MINISTRAL | {"model_type": "ministral3"},
        "spatial_merge_size": 1,
    },
    "glm4": {"model_type": "glm4", "head_dim": 16},
    "cohere2": {"model_type": "cohere2", "layer_types": SLIDING, "sliding_window": 9, "logit_scale": 0.3},
    "seed_oss": {"model_type": "seed_oss", "head_dim": 16, "attention_out_bias": True},
    "exaone4": {"model_type": "exaone4", "sliding_window": 9, "layer_types": SLIDING},
    "exaone4, no windows": {"model_type": "exaone4", "sliding_window": None, "layer_types": ["full_attention"] * 4},
    "hunyuan_v1_dense": {
        "model_type": "hunyuan_v1_dense",
        "head_dim": 16,
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 100.0, "alpha": 50.0, "factor": 1.0},
    },
    "arcee": {"model_type": "arcee", "rope_parameters": YARN, "mlp_bias": True},
    "starcoder2": {"model_type": "starcoder2", "sliding_window": 9},
    "gpt_neox": {"model_type": "gpt_neox", "num_key_value_heads": 4},
    "gpt_neox, one after the other": {
        "model_type": "gpt_neox",
        "num_key_value_heads": 4,
        "use_parallel_residual": False,
        "rotary_pct": 0.5,
    },
    "mixtral": {
        "model_type": "mixtral",
        "intermediate_size": 48,
        "num_local_experts": 5,
        "num_experts_per_tok": 2,
        "sliding_window": 9,
    },
    "olmoe": {"model_type": "olmoe", **EXPERTS, "intermediate_size": 48, "norm_topk_prob": True},
    "olmoe, clipped": {"model_type": "olmoe", **EXPERTS, "intermediate_size": 48, "clip_qkv": 0.9},
    "granitemoe": {
        "model_type": "granitemoe",
        "intermediate_size": 80,
        "num_local_experts": 6,
        "num_experts_per_tok": 3,
        **GRANITE,
    },
    "gpt_oss": {
        "model_type": "gpt_oss",
        "head_dim": 16,
        "num_local_experts": 5,
        "num_experts_per_tok": 3,
        "sliding_window": 9,
        "swiglu_limit": 0.8,
        "rope_parameters": YARN | {"truncate": False},
    },
    "llama4": {"model_type": "llama4_text", **LLAMA4},
    "llama4, of several towers": {"model_type": "llama4", "text_config": SIZES | LLAMA4 | {"pad_token_id": 0}},
    "gemma4, with experts": {
        "model_type": "gemma4_text",
        **GEMMA4,
        "enable_moe_block": True,
        "num_experts": 6,
        "top_k_experts": 3,
        "moe_intermediate_size": 24,
    },
    "deepseek_v3": {
        "model_type": "deepseek_v3",
        **GROUPED,
        **LATENT,
        "rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 0.7},
    },
    "deepseek_v3, queries of full rank": {
        "model_type": "deepseek_v3",
        **GROUPED,
        **LATENT,
        "q_lora_rank": None,
        "rope_interleave": False,
        "n_group": 1,
        "topk_group": 1,
    },
    "glm4_moe": {"model_type": "glm4_moe", **GROUPED, "head_dim": 16, "use_qk_norm": True, "attention_bias": True},
    "qwen2_moe": {
        "model_type": "qwen2_moe",
        **EXPERTS,
        "shared_expert_intermediate_size": 40,
        "decoder_sparse_step": 2,
        "use_sliding_window": True,
        "sliding_window": 9,
    },
    "qwen3_moe": {"model_type": "qwen3_moe", **EXPERTS, "head_dim": 16, "norm_topk_prob": True, "mlp_only_layers": [1]},
    "lfm2": {
        "model_type": "lfm2",
        "layer_types": ["conv", "full_attention", "conv", "conv"],
        "conv_bias": True,
        "block_multiple_of": 8,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
    },
    "mamba2": {"model_type": "mamba2", **MAMBA2},
    "granitemoehybrid": {"model_type": "granitemoehybrid", **GRANITE, **GRANITE_HYBRID},
    "granitemoehybrid, rotated": {
        "model_type": "granitemoehybrid",
        **GRANITE,
        **GRANITE_HYBRID,
        "position_embedding_type": "rope",
    },
    "granitemoehybrid, with experts": {
        "model_type": "granitemoehybrid",
        **GRANITE,
        **GRANITE_HYBRID,
        "num_local_experts": 5,
        "num_experts_per_tok": 2,
        "intermediate_size": 48,
    },
    "qwen3_5": {"model_type": "qwen3_5_text", **DELTA_NET},
    "qwen3_5, of several towers": {"model_type": "qwen3_5", "text_config": SIZES | DELTA_NET},
    "qwen3_5_moe": {"model_type": "qwen3_5_moe_text", **DELTA_NET, **EXPERTS, "shared_expert_intermediate_size": 40},
    "qwen3_5_moe, of several towers": {
        "model_type": "qwen3_5_moe",
        "text_config": SIZES | DELTA_NET | EXPERTS | {"shared_expert_intermediate_size": 40},
    },
    "qwen3_next": {"model_type": "qwen3_next", **DELTA_NET, "num_experts": 0},
    "qwen3_next, with experts": {
        "model_type": "qwen3_next",
        **DELTA_NET,
        **EXPERTS,
        "shared_expert_intermediate_size": 40,
        "mlp_only_layers": [1],
    },
    "gpt2": {"model_type": "gpt2", "num_key_value_heads": 4, "n_inner": 88},
}
# model types whose layers have states, which NumPy runs
RECURRENT = frozenset(
    {"lfm2", "mamba2", "granitemoehybrid", "qwen3_5_text", "qwen3_5", "qwen3_5_moe_text", "qwen3_5_moe", "qwen3_next"}
)


class MimoConfig(Qwen2Config):
    """Not one of transformers' own: the model's code on the Hub is that of Qwen 2, the MTP layer aside."""

    model_type = "mimo"


class MimoForCausalLM(Qwen2ForCausalLM):
    config_class = MimoConfig


AutoConfig.register("mimo", MimoConfig)
AutoModelForCausalLM.register(MimoConfig, MimoForCausalLM)


def config_of(family: str, **changes: Any) -> Any:
    """The configuration of a family of `FAMILIES`, with changes of its text's keys."""
    own = FAMILIES[family]
    text = own["text_config"] if "text_config" in own else SIZES | own
    config = AutoConfig.for_model(**(own | {"text_config": text | changes} if "text_config" in own else text | changes))
    if getattr(config, "vision_config", None) is not None:
        for key, value in VISION.items():
            setattr(config.vision_config, key, value)
    return config


def make_model(family: str, **changes: Any) -> Any:
    """A model of `config_of` in float32 with eager attention, every parameter random and exact in BF16."""
    torch.set_num_threads(1)
    auto = AutoModelForImageTextToText if "text_config" in FAMILIES[family] else AutoModelForCausalLM
    torch.manual_seed(3)
    model = auto.from_config(config_of(family, **changes), attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(5)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if name.endswith(("inv_freq", "embed_scale", "position_ids")):
            continue
        values = torch.randn(tensor.shape, generator=generator) * (0.2 if tensor.ndim == 2 else 0.3)
        if tensor.ndim == 1 and float(tensor.detach().mean()) > 0.9:  # a factor around one; others lie around zero
            values += 1.0
        tensor.data.copy_(torch.from_numpy(BF16.decode(BF16.encode(values.numpy()))))
    return model


def logits_of(model: Any, token_ids: list[int]) -> np.ndarray:
    """(length, vocabulary) of a text."""
    if type(model).__name__ == "Llama4ForConditionalGeneration":  # cannot put text alone out in transformers 5.24
        model = model.language_model
    with torch.no_grad():
        logits: np.ndarray = model(torch.tensor([token_ids])).logits[0].numpy()
    return logits


def write_checkpoint(model: Any, folder: Path, further: Mapping[str, Any] | None = None) -> None:
    """config.json and BF16 weights, as save_pretrained writes them, and further tensors that it leaves out."""
    tensors: dict[int, tuple[str, Any]] = {}
    for name, tensor in model.state_dict().items():
        tensors.setdefault(tensor.data_ptr(), (name, tensor.bfloat16()))  # tied ones once
    model.save_pretrained(folder, state_dict=dict(tensors.values()))
    if further:
        path = folder / "model.safetensors"
        whole = {name: tensor.bfloat16().contiguous() for name, tensor in further.items()}
        safetensors.torch.save_file(safetensors.torch.load_file(path) | whole, path, {"format": "pt"})
