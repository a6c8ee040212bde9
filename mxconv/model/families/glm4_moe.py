"""GLM 4.5: DeepSeek's routing behind a few dense layers, rotations of half of each head."""

from mxconv.model.config import ModelConfig
from mxconv.model.families.expert_keys import first_dense, grouped_routing, mlps, routed_and_shared
from mxconv.model.families.keys import Keys
from mxconv.model.fields import Fields


def glm4_moe(fields: Fields) -> ModelConfig:
    """`model_type` glm4_moe; its own draft layers behind the others are left alone."""
    keys = Keys.read(fields, max_positions=131072, eps=1e-5, num_key_value_heads=8)
    norms = keys.head_norms() if fields.flag("use_qk_norm", False) else {}
    mixer = keys.attention(keys.rope(share=0.5), fields.flag("attention_bias", False), **norms)
    activation = keys.activation("hidden_act", "silu")
    mixture = routed_and_shared(fields, grouped_routing(fields), activation)
    return keys.model([keys.layer(mixer, mlp) for mlp in mlps(first_dense(keys, 1), mixture, keys, activation)])
