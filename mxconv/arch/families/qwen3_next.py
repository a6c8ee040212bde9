"""Qwen3-Next: Qwen 3.5's mixers, their tensors fused key head by key head, and experts in most layers."""

from mxconv.arch.config import ModelConfig
from mxconv.arch.elements import Mlp
from mxconv.arch.families.expert_keys import gated_experts, mlps, sparse_layers
from mxconv.arch.families.keys import Keys
from mxconv.arch.families.mtp_modules import beside
from mxconv.arch.families.qwen3_5 import (
    SILU,
    gated_attention,
    gated_delta_net,
    offset_norm,
    offset_norms,
    read_keys,
    recurrent_layers,
)
from mxconv.arch.fields import Fields
from mxconv.arch.mixture import Mixture


def qwen3_next(fields: Fields) -> ModelConfig:
    """`model_type` qwen3_next; with `num_experts` 0 it has none."""
    keys = read_keys(fields, num_key_value_heads=2)
    attention, delta_net, norms = gated_attention(keys), gated_delta_net(keys, fused=True), offset_norms(keys)
    parts = _mlps(keys)
    layers = [
        keys.layer(delta_net if recurs else attention, mlp, **norms)
        for recurs, mlp in zip(recurrent_layers(keys), parts, strict=True)
    ]
    mtp = beside(keys, offset_norm(keys), keys.layer(attention, parts[-1], **norms))
    return keys.model(layers, final_norm=keys.norm("model.norm", offset=1.0), mtp=mtp)


def _mlps(keys: Keys) -> list[Mlp | Mixture]:
    activation = keys.activation("hidden_act", "silu", SILU)
    if keys.fields.values.get("num_experts") == 0:
        return [keys.gated_mlp(activation)] * keys.num_hidden_layers
    mixture = gated_experts(keys.fields, activation, keys.fields.flag("norm_topk_prob", True))
    return mlps(sparse_layers(keys), mixture, keys, activation)
