"""GLM 4: rotations of neighbours in half of each head, norms before and after each part, a fused MLP.

GLM 4.5 has DeepSeek's routing after a few dense layers, and rotations of half of each head.
"""

from dataclasses import replace

from mxconv.arch.config import ModelConfig
from mxconv.arch.families.expert_keys import first_dense, grouped_routing, mlps, routed_and_shared
from mxconv.arch.families.keys import Keys
from mxconv.arch.families.mtp_modules import nextn
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


def glm4_moe(fields: Fields) -> ModelConfig:
    """`model_type` glm4_moe; MTP layers after the others have experts, whatever precedes them."""
    keys = Keys.read(fields, max_positions=131072, eps=1e-5, num_key_value_heads=8)
    norms = keys.head_norms() if fields.flag("use_qk_norm", False) else {}
    mixer = keys.attention(keys.rope(share=0.5), fields.flag("attention_bias", False), **norms)
    activation = keys.activation("hidden_act", "silu")
    mixture = routed_and_shared(fields, grouped_routing(fields), activation)
    layers = [keys.layer(mixer, mlp) for mlp in mlps(first_dense(keys, 1), mixture, keys, activation)]
    return keys.model(layers, mtp=nextn(keys, keys.layer(mixer, mixture)))
