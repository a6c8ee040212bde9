"""HunYuan dense: queries and keys are normed after their rotation, whose base a fixed factor stretches."""

from dataclasses import replace

from mxconv.arch.config import ModelConfig
from mxconv.arch.families.keys import Keys
from mxconv.arch.fields import Fields
from mxconv.arch.rope_parameters import scaling_of


def hunyuan_v1_dense(fields: Fields) -> ModelConfig:
    """`model_type` hunyuan_v1_dense; `alpha` makes scaling of type dynamic a constant one."""
    section = scaling_of(fields)
    rope_type, alpha = section.values.get("rope_type", section.values.get("type")), section.values.get("alpha")
    is_stretched = rope_type == "dynamic" and bool(alpha)
    if is_stretched:  # by transformers' own code for this family, which always rotates whole heads
        fields = Keys.ignoring(fields, "partial_rotary_factor")
    keys = Keys.read(fields, max_positions=2048, eps=1e-5)
    rope = keys.rope()
    if is_stretched:
        size = keys.head_dim
        rope = replace(rope, theta=rope.theta * section.number("alpha") ** (size / max(size - 2, 1)))
    mixer = keys.biased_attention(
        rope,
        query_norm=keys.norm("self_attn.query_layernorm"),
        key_norm=keys.norm("self_attn.key_layernorm"),
        norms_rotated=True,
    )
    mlp = keys.gated_mlp(keys.activation("hidden_act", "silu"))
    return keys.model([keys.layer(mixer, mlp)] * keys.num_hidden_layers)
