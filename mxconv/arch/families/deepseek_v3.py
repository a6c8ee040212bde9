"""DeepSeek V3: latent attention, and its routing after a few dense layers; and GLM 4.

GLM 4 has rotations of neighbours in half of each head, norms before and after each part, and a fused MLP. GLM 4.5 has
DeepSeek's routing after a few dense layers, and rotations of half of each head.
"""

import math
from dataclasses import replace

from mxconv.arch.config import ModelConfig
from mxconv.arch.description import LatentAttention
from mxconv.arch.elements import Linear, Norm
from mxconv.arch.families.expert_keys import first_dense, grouped_routing, mlps, routed_and_shared
from mxconv.arch.families.keys import Keys
from mxconv.arch.families.mtp_modules import nextn
from mxconv.arch.fields import Fields
from mxconv.arch.rope_parameters import RopeParameters, scaling_of

LATENT_EPS = 1e-6  # of the norms inside attention, whatever rms_norm_eps says


def deepseek_v3(fields: Fields) -> ModelConfig:
    """`model_type` deepseek_v3; MTP layers after the others have experts, whatever precedes them."""
    rotated = fields.size("qk_rope_head_dim", 64)
    keys = Keys.read(replace(fields, values={**fields.values, "head_dim": rotated}), max_positions=4096)
    rope = replace(keys.rope(), is_interleaved=fields.flag("rope_interleave", True))
    mixer = _mixer(keys, rope, rotated)
    activation = keys.activation("hidden_act", "silu")
    mixture = routed_and_shared(fields, grouped_routing(fields), activation)
    layers = [keys.layer(mixer, mlp) for mlp in mlps(first_dense(keys, 3), mixture, keys, activation)]
    return keys.model(layers, mtp=nextn(keys, keys.layer(mixer, mixture)))


def _mixer(keys: Keys, rope: RopeParameters, rotated: int) -> LatentAttention:
    fields, bias = keys.fields, keys.fields.flag("attention_bias", False)
    plain, heads = fields.size("qk_nope_head_dim", 128), keys.num_attention_heads
    has_rank = fields.values.get("q_lora_rank", 1536) is not None
    rank = fields.size("q_lora_rank", 1536) if has_rank else keys.hidden_size
    return LatentAttention(
        num_heads=heads,
        latent_size=fields.size("kv_lora_rank", 512),
        plain_size=plain,
        rotated_size=rotated,
        value_size=fields.size("v_head_dim", 128),
        query_rank=rank,
        query_down=Linear("self_attn.q_a_proj", bias) if has_rank else None,
        query_norm=Norm("self_attn.q_a_layernorm", LATENT_EPS) if has_rank else None,
        query=Linear("self_attn.q_b_proj" if has_rank else "self_attn.q_proj"),
        down=Linear("self_attn.kv_a_proj_with_mqa", bias),
        latent_norm=Norm("self_attn.kv_a_layernorm", LATENT_EPS),
        up=Linear("self_attn.kv_b_proj"),
        output=Linear("self_attn.o_proj", bias),
        scale=_grown(fields, rope) ** 2 / math.sqrt(plain + rotated),
        rope=rope,
    )


def _grown(fields: Fields, rope: RopeParameters) -> float:
    """The factor of queries and keys with stretched rotations (`mscale_all_dim`)."""
    section = scaling_of(fields)
    if rope.rope_type == "default" or rope.factor <= 1 or not section.values.get("mscale_all_dim"):
        return 1.0
    return 0.1 * section.number("mscale_all_dim") * math.log(rope.factor) + 1.0


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
