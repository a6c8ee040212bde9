"""Mixtral: Mistral with experts in every layer, under names of their own.

transformers 5 has other names for them, and stacks, in memory and where it is asked to save what it has.
"""

from dataclasses import replace

from mxconv.arch.config import ModelConfig
from mxconv.arch.families.expert_keys import experts, routing
from mxconv.arch.families.keys import Keys
from mxconv.arch.fields import Fields
from mxconv.arch.mixture import Mixture


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
