"""EXAONE 4: norms of what a layer adds, of each query and key; layers that see all positions rotate nothing."""

from mxconv.arch.config import ModelConfig
from mxconv.arch.families.keys import Keys
from mxconv.arch.fields import Fields


def exaone4(fields: Fields) -> ModelConfig:
    """`model_type` exaone4; without windows all layers rotate."""
    keys = Keys.read(fields, max_positions=2048, eps=1e-5)
    rope, window = keys.rope(), keys.window(4096)
    mlp = keys.gated_mlp(keys.activation("hidden_act", "silu"))
    norms = keys.head_norms()
    layers = []
    for slides in keys.layer_kinds(lambda layer: _slides(keys, layer)):
        turns = rope if window is None or slides else None
        layer = keys.layer(
            keys.attention(turns, window=window if slides else None, **norms),
            mlp,
            before_mixer=None,
            before_mlp=None,
            after_mixer=keys.norm("post_attention_layernorm"),
            after_mlp=keys.norm("post_feedforward_layernorm"),
        )
        layers.append(layer)
    return keys.model(layers)


def _slides(keys: Keys, layer: int) -> bool:
    """`sliding_window_pattern`: every so many layers one sees all; or a text such as LLLG, L for a window."""
    pattern = keys.fields.values.get("sliding_window_pattern", 4)
    if keys.window(4096) is None:
        return False
    if isinstance(pattern, str) and pattern and set(pattern) <= {"L", "G"}:
        return layer != keys.num_hidden_layers - 1 and pattern[layer % len(pattern)] == "L"
    if type(pattern) is not int or pattern < 1:
        keys.fields.reject("sliding_window_pattern", "a number from 1 on, or a text of L and G, is required")
    return (layer + 1) % pattern != 0
