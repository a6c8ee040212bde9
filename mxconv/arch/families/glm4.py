"""GLM 4: rotations of neighbours in half of each head, norms before and behind each part, a fused MLP."""

from dataclasses import replace

from mxconv.arch.config import ModelConfig
from mxconv.arch.families.keys import Keys
from mxconv.arch.fields import Fields


def glm4(fields: Fields) -> ModelConfig:
    """`model_type` glm4."""
    keys = Keys.read(fields, max_positions=131072, eps=1.5625e-07, num_key_value_heads=2, head_dim=128)
    rope = replace(keys.rope(share=0.5), is_interleaved=True)
    layer = keys.layer(
        keys.attention(rope, fields.flag("attention_bias", True)),
        keys.fused_mlp(keys.activation("hidden_act", "silu")),
        after_mixer=keys.norm("post_self_attn_layernorm"),
        after_mlp=keys.norm("post_mlp_layernorm"),
    )
    return keys.model([layer] * keys.num_hidden_layers)
