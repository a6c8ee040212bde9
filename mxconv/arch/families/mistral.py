"""Mistral: Llama's layers, each of which sees a window. Ministral 3: queries that grow with their position.

Mixtral has experts in every layer, under names of their own. transformers 5 has other names for them, and stacks, in
memory and where it is asked to save what it has.
"""

from dataclasses import replace

from mxconv.arch.config import ModelConfig
from mxconv.arch.description import Temperature
from mxconv.arch.families.expert_keys import experts, routing
from mxconv.arch.families.keys import Keys
from mxconv.arch.fields import Fields
from mxconv.arch.mixture import Mixture
from mxconv.arch.rope_parameters import scaling_of


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
    section = scaling_of(fields)
    temperature = None
    if section.values.get("llama_4_scaling_beta"):
        beta = section.number("llama_4_scaling_beta")
        temperature = Temperature(beta, section.size("original_max_position_embeddings"))
    mixer = keys.attention(rope, window=keys.window(None), temperature=temperature)
    mlp = keys.gated_mlp(keys.activation("hidden_act", "silu"))
    return keys.model([keys.layer(mixer, mlp)] * keys.num_hidden_layers)


def mixtral(fields: Fields) -> ModelConfig:
    """`model_type` mixtral."""
    keys = Keys.read(fields, max_positions=131072, eps=1e-5, num_key_value_heads=8)
    activation = keys.activation("hidden_act", "silu")
    mixture = Mixture(
        routing(fields, "block_sparse_moe.gate", experts_keys=("num_experts", "num_local_experts"), is_normalized=True),
        experts(fields.size("intermediate_size"), activation, "block_sparse_moe.experts", ("w1", "w3", "w2")),
    )
    mixer = keys.attention(keys.rope(theta=1e6), window=keys.window(None))
    model = keys.model([keys.layer(mixer, mixture)] * keys.num_hidden_layers)
    return replace(model, renamed=((".mlp.", ".block_sparse_moe."),))
