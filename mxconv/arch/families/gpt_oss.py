"""gpt-oss: biases everywhere, attention sinks, windows in every other layer, and clamped experts that are stacked."""

from dataclasses import replace
from typing import Any

from mxconv.arch.config import ModelConfig
from mxconv.arch.elements import ClampedGate, Linear, Mixture
from mxconv.arch.families.expert_keys import experts, routing
from mxconv.arch.families.keys import Keys
from mxconv.arch.fields import Fields

ROPE: dict[str, Any] = {  # of a file that has none
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


def gpt_oss(fields: Fields) -> ModelConfig:
    """`model_type` gpt_oss; its experts are BF16, or MXFP4 that is carried over."""
    if not fields.values.get("rope_scaling") and not fields.values.get("rope_parameters"):
        fields = replace(fields, values={**fields.values, "rope_scaling": ROPE})
    keys = Keys.read(fields, max_positions=131072, eps=1e-5, num_key_value_heads=8, head_dim=64)
    bias, rope, window = fields.flag("attention_bias", True), keys.rope(theta=150000.0), keys.window(128)
    mixture = Mixture(
        routing(
            fields,
            "mlp.router",
            experts_keys=("num_experts", "num_local_experts"),
            score="softmax_of_chosen",
            router=Linear("mlp.router", has_bias=True),
        ),
        experts(
            fields.size("intermediate_size"),
            keys.activation("hidden_act", "silu", ("silu",)),
            names=None,
            is_interleaved=True,
            has_bias=True,
            clamped=ClampedGate(fields.number("swiglu_alpha", 1.702), fields.number("swiglu_limit", 7.0)),
        ),
    )
    layers = []
    for slides in keys.layer_kinds(lambda layer: layer % 2 == 0):
        mixer = keys.attention(rope, bias, bias, window=window if slides else None, sinks="self_attn.sinks")
        layers.append(keys.layer(mixer, mixture))
    return keys.model(layers)
