"""Qwen 2 and 3 with experts in some layers; Qwen 2 has an expert for all rows too, with a gate of its own."""

from mxconv.arch.config import ModelConfig
from mxconv.arch.description import Attention
from mxconv.arch.families.expert_keys import experts, gated_experts, mlps, routing, sparse_layers
from mxconv.arch.families.keys import Keys
from mxconv.arch.fields import Fields
from mxconv.arch.mixture import Mixture


def qwen2_moe(fields: Fields) -> ModelConfig:
    """`model_type` qwen2_moe."""
    keys = Keys.read(fields, max_positions=32768)
    rope, bias = keys.rope(), fields.flag("qkv_bias", True)
    first = fields.values.get("max_window_layers", 28)
    if type(first) is not int or first < 0:
        fields.reject("max_window_layers", "an integer from 0 on is required")
    window = keys.window(4096) if fields.flag("use_sliding_window", False) else None
    kinds = keys.layer_kinds(lambda layer: window is not None and layer % 2 == 0 and layer < first)
    activation = keys.activation("hidden_act", "silu")
    mixture = gated_experts(fields, activation, fields.flag("norm_topk_prob", False), shared=5632)
    return _model(keys, [keys.attention(rope, bias, window=window if near else None) for near in kinds], mixture)


def qwen3_moe(fields: Fields) -> ModelConfig:
    """`model_type` qwen3_moe."""
    keys = Keys.read(fields, max_positions=32768, num_key_value_heads=4)
    bias = fields.flag("attention_bias", False)
    window = keys.window(4096) if fields.flag("use_sliding_window", False) else None
    mixture = Mixture(
        routing(
            fields,
            "mlp.gate",
            experts_keys=("num_local_experts", "num_experts"),
            is_normalized=fields.flag("norm_topk_prob", False),
        ),
        experts(fields.size("moe_intermediate_size", 768), keys.activation("hidden_act", "silu")),
    )
    mixer = keys.attention(keys.rope(), bias, bias, window=window, **keys.head_norms())
    return _model(keys, [mixer] * keys.num_hidden_layers, mixture)


def _model(keys: Keys, mixers: list[Attention], mixture: Mixture) -> ModelConfig:
    parts = mlps(sparse_layers(keys), mixture, keys, mixture.experts.activation)
    return keys.model([keys.layer(mixer, mlp) for mixer, mlp in zip(mixers, parts, strict=True)])
