"""Arcee: Llama with squared ReLU in an MLP without a gate."""

from mxconv.arch.config import ModelConfig
from mxconv.arch.elements import Linear, Mlp
from mxconv.arch.families.keys import Keys
from mxconv.arch.fields import Fields


def arcee(fields: Fields) -> ModelConfig:
    """`model_type` arcee."""
    keys = Keys.read(fields, max_positions=4096, eps=1e-5)
    bias, mlp_bias = fields.flag("attention_bias", False), fields.flag("mlp_bias", False)
    mlp = Mlp(
        size=fields.size("intermediate_size"),
        activation=keys.activation("hidden_act", "relu2"),
        up=Linear("mlp.up_proj", mlp_bias),
        down=Linear("mlp.down_proj", mlp_bias),
    )
    layer = keys.layer(keys.attention(keys.rope(), bias, bias), mlp)
    return keys.model([layer] * keys.num_hidden_layers)
