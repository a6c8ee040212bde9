"""Granite: Llama with multipliers of embeddings, of what layers add, of attention and of logits."""

from mxconv.arch.config import ModelConfig
from mxconv.arch.families.keys import Keys
from mxconv.arch.fields import Fields


def granite(fields: Fields) -> ModelConfig:
    """`model_type` granite."""
    keys = Keys.read(fields, max_positions=2048)
    bias = fields.flag("attention_bias", False)
    mixer = keys.attention(keys.rope(), bias, bias, scale=fields.number("attention_multiplier", 1.0))
    mlp = keys.gated_mlp(keys.activation("hidden_act", "silu"), fields.flag("mlp_bias", False))
    layer = keys.layer(mixer, mlp, residual_multiplier=fields.number("residual_multiplier", 1.0))
    return keys.model(
        [layer] * keys.num_hidden_layers,
        embedding_multiplier=fields.number("embedding_multiplier", 1.0),
        logit_multiplier=1 / fields.number("logits_scaling", 1.0),
    )
