"""Llama: every other family is told by what it does differently."""

from mxconv.arch.config import ModelConfig
from mxconv.arch.families.keys import Keys
from mxconv.arch.fields import Fields


def llama(fields: Fields) -> ModelConfig:
    """`model_type` llama, and what has its layers under another name."""
    keys = Keys.read(fields, max_positions=2048)
    activation = keys.activation("hidden_act", "silu", ("silu",))
    mixer = keys.biased_attention(keys.rope())
    layer = keys.layer(mixer, keys.gated_mlp(activation, fields.flag("mlp_bias", False)))
    return keys.model([layer] * keys.num_hidden_layers)
