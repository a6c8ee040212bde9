"""Qwen 2 and 3: biases on queries, keys and values, or norms of them, and windows in some layers."""

from mxconv.arch.config import ModelConfig
from mxconv.arch.description import Attention
from mxconv.arch.families.keys import Keys
from mxconv.arch.fields import Fields


def qwen2(fields: Fields) -> ModelConfig:
    """`model_type` qwen2."""
    keys = Keys.read(fields, max_positions=32768)
    return _layers(keys, [keys.attention(keys.rope(), True, window=window) for window in _windows(keys)])


def qwen3(fields: Fields) -> ModelConfig:
    """`model_type` qwen3; transformers gives a file without head_dim 128, whatever the other sizes."""
    keys = Keys.read(fields, max_positions=32768, head_dim=128)
    bias, rope = fields.flag("attention_bias", False), keys.rope()
    norms = keys.head_norms()
    return _layers(keys, [keys.attention(rope, bias, bias, window=window, **norms) for window in _windows(keys)])


def _layers(keys: Keys, mixers: list[Attention]) -> ModelConfig:
    activation = keys.activation("hidden_act", "silu", ("silu",))
    return keys.model([keys.layer(mixer, keys.gated_mlp(activation)) for mixer in mixers])


def _windows(keys: Keys) -> list[int | None]:
    """With `use_sliding_window`, layers from `max_window_layers` on see one, or those that `layer_types` names."""
    fields = keys.fields
    first = fields.values.get("max_window_layers", 28)
    if type(first) is not int or first < 0:
        fields.reject("max_window_layers", "an integer from 0 on is required")
    window = keys.window(4096) if fields.flag("use_sliding_window", False) else None
    return [window if slides else None for slides in keys.layer_kinds(lambda layer: layer >= first)]
