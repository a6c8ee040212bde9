"""Seed-OSS: Llama with a switch for each bias."""

from mxconv.arch.config import ModelConfig
from mxconv.arch.families.keys import Keys
from mxconv.arch.fields import Fields


def seed_oss(fields: Fields) -> ModelConfig:
    """`model_type` seed_oss."""
    keys = Keys.read(fields, max_positions=524288, num_key_value_heads=8, head_dim=128)
    mixer = keys.attention(keys.rope(), fields.flag("attention_bias", True), fields.flag("attention_out_bias", False))
    mlp = keys.gated_mlp(keys.activation("hidden_act", "silu"), fields.flag("mlp_bias", False))
    return keys.model([keys.layer(mixer, mlp)] * keys.num_hidden_layers)
