"""Qwen 2 and 3: biases on queries, keys and values, or norms of them, and windows in some layers.

Both also with experts in some layers; Qwen 2 has an expert for all rows too, with a gate of its own. MiMo has Qwen 2's
layers, and one for multi-token prediction.
"""

from collections.abc import Callable
from dataclasses import replace
from operator import ge

from mxconv.arch.config import ModelConfig
from mxconv.arch.description import Attention
from mxconv.arch.elements import Mixture
from mxconv.arch.families.expert_keys import experts, gated_experts, mlps, routing, sparse_layers
from mxconv.arch.families.keys import Keys
from mxconv.arch.families.mtp_modules import mtp_layers
from mxconv.arch.fields import Fields


def qwen2(fields: Fields) -> ModelConfig:
    """`model_type` qwen2."""
    keys = Keys.read(fields, max_positions=32768)
    return _layers(keys, [keys.attention(keys.rope(), True, window=window) for window in _windows(keys)])


def qwen3(fields: Fields) -> ModelConfig:
    """`model_type` qwen3; transformers gives a file without head_dim 128, whatever the other sizes."""
    keys = Keys.read(fields, max_positions=32768, head_dim=128)
    rope = keys.rope()
    norms = keys.head_norms()
    return _layers(keys, [keys.biased_attention(rope, window=window, **norms) for window in _windows(keys)])


def _layers(keys: Keys, mixers: list[Attention]) -> ModelConfig:
    activation = keys.activation("hidden_act", "silu", ("silu",))
    return keys.model([keys.layer(mixer, keys.gated_mlp(activation)) for mixer in mixers])


def _windows(keys: Keys, slides: Callable[[int, int], bool] = ge) -> list[int | None]:
    """The window of each layer: none without `use_sliding_window`; `layer_types` says which layers have one, or where
    the file has no such list `slides`, of a layer and `max_window_layers`."""
    fields = keys.fields
    first = fields.values.get("max_window_layers", 28)
    if type(first) is not int or first < 0:
        fields.reject("max_window_layers", "an integer from 0 on is required")
    window = keys.window(4096) if fields.flag("use_sliding_window", False) else None
    return [window if near else None for near in keys.layer_kinds(lambda layer: slides(layer, first))]


def qwen2_moe(fields: Fields) -> ModelConfig:
    """`model_type` qwen2_moe."""
    keys = Keys.read(fields, max_positions=32768)
    rope, bias = keys.rope(), fields.flag("qkv_bias", True)
    windows = _windows(keys, lambda layer, first: layer % 2 == 0 and layer < first)
    activation = keys.activation("hidden_act", "silu")
    mixture = gated_experts(fields, activation, fields.flag("norm_topk_prob", False), shared=5632)
    return _with_experts(keys, [keys.attention(rope, bias, window=window) for window in windows], mixture)


def qwen3_moe(fields: Fields) -> ModelConfig:
    """`model_type` qwen3_moe."""
    keys = Keys.read(fields, max_positions=32768, num_key_value_heads=4)
    window = keys.window(4096) if fields.flag("use_sliding_window", False) else None
    mixture = Mixture(
        routing(
            fields,
            "mlp.gate",
            experts_keys=("num_local_experts", "num_experts"),
            is_normalized=fields.flag("norm_topk_prob", False),
        ),
        experts(fields.size("moe_intermediate_size", 768), keys.activation("hidden_act", "silu")),
    )
    mixer = keys.biased_attention(keys.rope(), window=window, **keys.head_norms())
    return _with_experts(keys, [mixer] * keys.num_hidden_layers, mixture)


def _with_experts(keys: Keys, mixers: list[Attention], mixture: Mixture) -> ModelConfig:
    parts = mlps(sparse_layers(keys), mixture, keys, mixture.experts.activation)
    return keys.model([keys.layer(mixer, mlp) for mixer, mlp in zip(mixers, parts, strict=True)])


def mimo(fields: Fields) -> ModelConfig:
    """`model_type` mimo: MiMo-7B, whose configuration is Qwen 2's."""
    model = qwen2(fields)
    return replace(model, mtp=mtp_layers(Keys.read(fields, max_positions=32768), model.layers[0]))
