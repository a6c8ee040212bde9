"""Llama: every other family is told by what it does differently; some of them differ in one thing.

Arcee has squared ReLU in an MLP without a gate, Seed-OSS a switch for each bias, and in SmolLM3 every fourth layer
rotates nothing.
"""

from mxconv.arch.config import ModelConfig
from mxconv.arch.families.keys import Keys
from mxconv.arch.fields import Fields


def llama(fields: Fields) -> ModelConfig:
    """`model_type` llama, and what has its layers under another name."""
    keys = Keys.read(fields, max_positions=2048)
    activation = keys.activation("hidden_act", "silu", ("silu",))
    mixer = keys.biased_attention(keys.rope())
    layer = keys.layer(mixer, keys.gated_mlp(activation, fields.flag("mlp_bias", False)))
    return keys.model([layer] * keys.num_hidden_layers)


def arcee(fields: Fields) -> ModelConfig:
    """`model_type` arcee."""
    keys = Keys.read(fields, max_positions=4096, eps=1e-5)
    activation, mlp_bias = keys.activation("hidden_act", "relu2"), fields.flag("mlp_bias", False)
    mlp = keys.plain_mlp(activation, "mlp.up_proj", "mlp.down_proj", mlp_bias)
    layer = keys.layer(keys.biased_attention(keys.rope()), mlp)
    return keys.model([layer] * keys.num_hidden_layers)


def seed_oss(fields: Fields) -> ModelConfig:
    """`model_type` seed_oss."""
    keys = Keys.read(fields, max_positions=524288, num_key_value_heads=8, head_dim=128)
    mixer = keys.attention(keys.rope(), fields.flag("attention_bias", True), fields.flag("attention_out_bias", False))
    mlp = keys.gated_mlp(keys.activation("hidden_act", "silu"), fields.flag("mlp_bias", False))
    return keys.model([keys.layer(mixer, mlp)] * keys.num_hidden_layers)


def smollm3(fields: Fields) -> ModelConfig:
    """`model_type` smollm3; `no_rope_layers` has a 1 where a layer rotates."""
    keys = Keys.read(fields, max_positions=32768, num_key_value_heads=4)
    rope, count = keys.rope(theta=2e6), keys.num_hidden_layers
    period = fields.size("no_rope_layer_interval", 4)
    rotates = fields.values.get("no_rope_layers")
    if rotates is None:
        rotates = [int((layer + 1) % period != 0) for layer in range(count)]
    if not isinstance(rotates, list) or len(rotates) != count or not all(each in (0, 1) for each in rotates):
        fields.reject("no_rope_layers", f"a list of num_hidden_layers, {count}, numbers 0 or 1 is required")
    window = keys.window(None) if fields.flag("use_sliding_window", False) else None
    slides = keys.layer_kinds(lambda layer: window is not None and not rotates[layer])
    mlp = keys.gated_mlp(keys.activation("hidden_act", "silu"), fields.flag("mlp_bias", False))
    layers = [
        keys.layer(keys.biased_attention(rope if turns else None, window=window if near else None), mlp)
        for turns, near in zip(rotates, slides, strict=True)
    ]
    return keys.model(layers, is_tied=True)
