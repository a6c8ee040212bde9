"""Arcee: Llama with squared ReLU in an MLP without a gate."""

from mxconv.arch.config import ModelConfig
from mxconv.arch.families.keys import Keys
from mxconv.arch.fields import Fields


def arcee(fields: Fields) -> ModelConfig:
    """`model_type` arcee."""
    keys = Keys.read(fields, max_positions=4096, eps=1e-5)
    activation, mlp_bias = keys.activation("hidden_act", "relu2"), fields.flag("mlp_bias", False)
    mlp = keys.plain_mlp(activation, "mlp.up_proj", "mlp.down_proj", mlp_bias)
    layer = keys.layer(keys.biased_attention(keys.rope()), mlp)
    return keys.model([layer] * keys.num_hidden_layers)
