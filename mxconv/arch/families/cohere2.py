"""Command R7B and A: attention and MLP side by side after one layer norm; no rotation where all positions are seen."""

from dataclasses import replace

from mxconv.arch.config import ModelConfig
from mxconv.arch.families.keys import Keys
from mxconv.arch.fields import Fields


def cohere2(fields: Fields) -> ModelConfig:
    """`model_type` cohere2."""
    keys = Keys.read(fields, max_positions=8192, eps=1e-5, eps_key="layer_norm_eps", kind="layer")
    rope = replace(keys.rope(), is_interleaved=True)
    window = keys.window(4096)
    mlp = keys.gated_mlp(keys.activation("hidden_act", "silu"))
    norm = keys.norm("input_layernorm")
    layers = []
    for slides in keys.layer_kinds(lambda layer: (layer + 1) % fields.size("sliding_window_pattern", 4) != 0):
        near = window if slides else None
        mixer = keys.biased_attention(None if near is None else rope, window=near)
        layers.append(keys.layer(mixer, mlp, before_mixer=norm, before_mlp=norm, is_parallel=True))
    return keys.model(layers, is_tied=True, logit_multiplier=fields.number("logit_scale", 0.0625))
