"""Qwen3-Next: Qwen 3.5's mixers, their tensors fused key head by key head."""

from mxconv.model.config import ModelConfig
from mxconv.model.families.keys import Keys
from mxconv.model.families.mtp import beside
from mxconv.model.families.qwen3_5 import (
    gated_attention,
    gated_delta_net,
    offset_norm,
    offset_norms,
    recurrent_layers,
)
from mxconv.model.fields import Fields


def qwen3_next(fields: Fields) -> ModelConfig:
    """`model_type` qwen3_next, without experts."""
    if fields.values.get("num_experts", 512) != 0:
        fields.reject("num_experts", "mxconv supports models without experts", "Use a model of that kind.")
    keys = Keys.read(fields, max_positions=32768, head_dim=256, num_key_value_heads=2)
    mlp = keys.gated_mlp(keys.activation("hidden_act", "silu", ("silu", "swish")))
    attention, delta_net, norms = gated_attention(keys), gated_delta_net(keys, fused=True), offset_norms(keys)
    layers = [keys.layer(delta_net if recurs else attention, mlp, **norms) for recurs in recurrent_layers(keys)]
    mtp = beside(keys, offset_norm(keys), keys.layer(attention, mlp, **norms))
    return keys.model(layers, final_norm=keys.norm("model.norm", offset=1.0), mtp=mtp)
