"""Mistral: Llama's layers, each of which sees a window. Ministral 3: queries that grow with their position."""

from mxconv.arch.config import ModelConfig
from mxconv.arch.description import Temperature
from mxconv.arch.families.keys import Keys
from mxconv.arch.fields import Fields


def mistral(fields: Fields) -> ModelConfig:
    """`model_type` mistral."""
    keys = Keys.read(fields, max_positions=131072)
    keys.activation("hidden_act", "silu", ("silu",))
    mixer = keys.attention(keys.rope(), window=keys.window(4096))
    return keys.model([keys.layer(mixer, keys.gated_mlp())] * keys.num_hidden_layers)


def ministral3(fields: Fields) -> ModelConfig:
    """`model_type` ministral3; `llama_4_scaling_beta` lies among its rotations' parameters."""
    keys = Keys.read(fields, max_positions=262144, eps=1e-5, num_key_value_heads=8, head_dim=128)
    rope = keys.rope(theta=1e6)
    section = fields.section("rope_scaling" if fields.values.get("rope_scaling") else "rope_parameters")
    temperature = None
    if section.values.get("llama_4_scaling_beta"):
        beta = section.number("llama_4_scaling_beta")
        temperature = Temperature(beta, section.size("original_max_position_embeddings"))
    mixer = keys.attention(rope, window=keys.window(None), temperature=temperature)
    mlp = keys.gated_mlp(keys.activation("hidden_act", "silu"))
    return keys.model([keys.layer(mixer, mlp)] * keys.num_hidden_layers)
