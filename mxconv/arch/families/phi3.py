"""Phi 3 and 4: one tensor for queries, keys and values, one for gate and MLP, and LongRoPE."""

from dataclasses import replace

from mxconv.arch.config import ModelConfig
from mxconv.arch.elements import Linear
from mxconv.arch.families.keys import Keys
from mxconv.arch.fields import Fields


def phi3(fields: Fields) -> ModelConfig:
    """`model_type` phi3.

    LongRoPE has other factors for texts beyond the original context, and would rotate again what a cache holds; mxconv
    runs the model within that context.
    """
    keys = Keys.read(fields, max_positions=4096, eps=1e-5)
    rope = keys.rope(share=1.0)
    if rope.rope_type == "longrope":
        original = min(keys.max_position_embeddings, rope.original_max_position_embeddings)
        keys = replace(keys, max_position_embeddings=original)
    both = Linear("self_attn.qkv_proj")
    mixer = keys.attention(rope, query=both, key=both, value=both, fused="blocks", window=keys.window(None))
    mlp = keys.fused_mlp(keys.activation("hidden_act", "silu"))
    return keys.model([keys.layer(mixer, mlp)] * keys.num_hidden_layers)
