"""Gemma: norms whose weights differ from one, embeddings that grow with the root of their size, GELU by tanh.

Gemma 2 norms what it adds too, caps attention and logits, and lets every other layer see a window. Gemma 3 norms
queries and keys instead of capping, and rotates by another base where a layer sees a window.
"""

import math
from dataclasses import replace

from mxconv.arch.config import ModelConfig
from mxconv.arch.description import Attention, LayerParts
from mxconv.arch.elements import Mlp
from mxconv.arch.families.keys import FULL, SLIDING, Keys
from mxconv.arch.fields import Fields
from mxconv.arch.rope_parameters import RopeParameters

# what published files of gemma3 leave out, as transformers has it
GEMMA3_SIZES = {"num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 262208}
MAX_POSITIONS = {"gemma": 8192, "gemma2": 8192, "gemma3_text": 131072}


def gemma(fields: Fields) -> ModelConfig:
    """`model_type` gemma; its files say "gelu" and mean the one by tanh."""
    keys = _keys(fields)
    fields.choice("hidden_act", ("gelu", "gelu_pytorch_tanh"), default="gelu_pytorch_tanh")
    mixer = keys.biased_attention(keys.rope())
    return _model(keys, [keys.layer(mixer, keys.gated_mlp("gelu_tanh"))] * keys.num_hidden_layers)


def gemma2(fields: Fields) -> ModelConfig:
    """`model_type` gemma2."""
    keys = _keys(fields)
    rope, window = keys.rope(), keys.window(4096)
    cap = _cap(fields, "attn_logit_softcapping", 50.0)
    layers = []
    for slides in keys.layer_kinds(lambda layer: layer % 2 == 0):
        seen = window if slides else None
        mixer = keys.biased_attention(rope, window=seen, scale=_scale(fields), logit_cap=cap)
        layers.append(_normed_layer(keys, mixer, _mlp(keys)))
    return _model(keys, layers, logit_cap=_cap(fields, "final_logit_softcapping", 30.0))


def gemma3(fields: Fields) -> ModelConfig:
    """`model_type` gemma3_text, alone or as the text tower of gemma3."""
    fields = replace(fields, values={**GEMMA3_SIZES, **fields.values})
    keys = _keys(fields)
    window = keys.window(4096)
    norms = keys.head_norms()
    near, far = (rope_of(keys, kind, theta) for kind, theta in ((SLIDING, 10000.0), (FULL, 1e6)))
    layers = []
    for slides in keys.layer_kinds(lambda layer: (layer + 1) % fields.size("sliding_window_pattern", 6) != 0):
        rope, seen = (near, window) if slides else (far, None)
        mixer = keys.biased_attention(rope, window=seen, scale=_scale(fields), **norms)
        layers.append(_normed_layer(keys, mixer, _mlp(keys)))
    return _model(keys, layers, logit_cap=_cap(fields, "final_logit_softcapping", None))


def rope_of(keys: Keys, kind: str, theta: float) -> RopeParameters:
    """The rotations of layers of a kind: each with its section, or in the old style one scaling for those of `FULL`."""
    fields, positions = keys.fields, keys.max_position_embeddings
    if has_sections(keys):
        own = fields.section("rope_parameters").section(kind)
        return RopeParameters.from_section(own, Fields({}, fields.name), positions, theta)
    if kind == SLIDING:
        return RopeParameters(fields.number("rope_local_base_freq", theta, at_least=1))
    return RopeParameters.from_fields(fields, positions, theta)


def has_sections(keys: Keys) -> bool:
    """Whether the rotations of each kind of layer have a section of their own."""
    return any(isinstance(value, dict) for value in keys.fields.section("rope_parameters").values.values())


def _keys(fields: Fields) -> Keys:
    if fields.values.get("use_bidirectional_attention"):
        fields.reject("use_bidirectional_attention", "mxconv supports causal attention", "Use a model of that kind.")
    positions = MAX_POSITIONS[fields.values["model_type"]]
    return Keys.read(fields, max_positions=positions, head_dim=256, offset=1.0)


def _mlp(keys: Keys) -> Mlp:
    return keys.gated_mlp(keys.activation("hidden_activation", "gelu_pytorch_tanh"))


def _normed_layer(keys: Keys, mixer: Attention, mlp: Mlp) -> LayerParts:
    return keys.layer(
        mixer,
        mlp,
        after_mixer=keys.norm("post_attention_layernorm"),
        before_mlp=keys.norm("pre_feedforward_layernorm"),
        after_mlp=keys.norm("post_feedforward_layernorm"),
    )


def _scale(fields: Fields) -> float:
    return 1 / math.sqrt(fields.number("query_pre_attn_scalar", 256.0))


def _cap(fields: Fields, key: str, default: float | None) -> float | None:
    """An explicit null means none."""
    if fields.values.get(key) is not None:
        return fields.number(key)
    return None if key in fields.values else default


def _model(keys: Keys, layers: list[LayerParts], logit_cap: float | None = None) -> ModelConfig:
    return keys.model(layers, is_tied=True, embedding_multiplier=math.sqrt(keys.hidden_size), logit_cap=logit_cap)
