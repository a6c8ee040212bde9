"""GLM 4.5: DeepSeek's routing behind a few dense layers, rotations of half of each head."""

from mxconv.arch.config import ModelConfig
from mxconv.arch.families.expert_keys import first_dense, grouped_routing, mlps, routed_and_shared
from mxconv.arch.families.keys import Keys
from mxconv.arch.families.mtp_modules import nextn
from mxconv.arch.fields import Fields


def glm4_moe(fields: Fields) -> ModelConfig:
    """`model_type` glm4_moe; MTP layers behind the others have experts, whatever stands before them."""
    keys = Keys.read(fields, max_positions=131072, eps=1e-5, num_key_value_heads=8)
    norms = keys.head_norms() if fields.flag("use_qk_norm", False) else {}
    mixer = keys.attention(keys.rope(share=0.5), fields.flag("attention_bias", False), **norms)
    activation = keys.activation("hidden_act", "silu")
    mixture = routed_and_shared(fields, grouped_routing(fields), activation)
    layers = [keys.layer(mixer, mlp) for mlp in mlps(first_dense(keys, 1), mixture, keys, activation)]
    return keys.model(layers, mtp=nextn(keys, keys.layer(mixer, mixture)))
