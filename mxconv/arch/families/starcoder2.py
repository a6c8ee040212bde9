"""StarCoder 2: layer norms with biases, biases everywhere, and an MLP without a gate."""

from mxconv.arch.config import ModelConfig
from mxconv.arch.families.keys import LAYER_NORM, Keys
from mxconv.arch.fields import Fields


def starcoder2(fields: Fields) -> ModelConfig:
    """`model_type` starcoder2."""
    keys = Keys.read(fields, max_positions=4096, eps=1e-5, eps_key="norm_epsilon", num_key_value_heads=2, **LAYER_NORM)
    bias = fields.flag("use_bias", True)
    mlp = keys.plain_mlp(keys.activation("hidden_act", "gelu_pytorch_tanh"), "mlp.c_fc", "mlp.c_proj", bias)
    layer = keys.layer(keys.attention(keys.rope(), bias, bias, window=keys.window(None)), mlp)
    return keys.model([layer] * keys.num_hidden_layers, is_tied=True)
