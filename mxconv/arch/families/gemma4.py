"""Gemma 4: larger heads where all positions are seen, last layers that read others' keys, inputs of layers' own.

Some have experts beside each layer's MLP.
"""

import math
from dataclasses import replace

from mxconv.arch.config import ModelConfig
from mxconv.arch.description import Attention, LayerInput, LayerInputs
from mxconv.arch.elements import Linear, Mixture, Mlp
from mxconv.arch.families.expert_keys import experts, routing
from mxconv.arch.families.gemma import rope_of
from mxconv.arch.families.keys import FULL, SLIDING, Keys
from mxconv.arch.fields import Fields

SIZE, NUM_SHARED = "hidden_size_per_layer_input", "num_kv_shared_layers"


def gemma4(fields: Fields) -> ModelConfig:
    """`model_type` gemma4_text, alone or as the text tower of gemma4."""
    key = "use_bidirectional_attention"
    if fields.values.get(key) not in (None, False, "vision"):  # that is attention between an image's tokens
        fields.reject(key, "mxconv supports models without", "Use a model of that kind.")
    keys = Keys.read(fields, max_positions=131072, num_key_value_heads=4, head_dim=256)
    slides = keys.layer_kinds(lambda layer: (layer + 1) % 6 != 0)
    slides = (*slides[:-1], False)  # as transformers: the last layer sees all
    first_shared = keys.num_hidden_layers - _count(fields, NUM_SHARED, 0)
    mixers = [_mixer(keys, layer, near) for layer, near in enumerate(slides)]
    if first_shared < keys.num_hidden_layers and not {*slides[first_shared:]} <= {*slides[: max(first_shared, 0)]}:
        fields.reject(NUM_SHARED, "layers before these, of each of their kinds, are required")
    for layer in range(first_shared, keys.num_hidden_layers):
        source = max(index for index in range(first_shared) if slides[index] == slides[layer])
        mixers[layer] = replace(mixers[layer], source=source)
    activation = keys.activation("hidden_activation", "gelu_pytorch_tanh")
    mlp, size = keys.gated_mlp(activation), _count(fields, SIZE, 256)
    wide = replace(mlp, size=2 * mlp.size) if fields.flag("use_double_wide_mlp", False) else mlp
    own = LayerInput(
        size,
        activation,
        gate=Linear("per_layer_input_gate"),
        projection=Linear("per_layer_projection"),
        norm=keys.norm("post_per_layer_input_norm"),
    )
    has_experts, norm = fields.flag("enable_moe_block", False), keys.norm("pre_feedforward_layernorm")
    layers = [
        keys.layer(
            mixer,
            _mixture(keys, own_mlp) if has_experts else own_mlp,
            after_mixer=keys.norm("post_attention_layernorm"),
            before_mlp=None if has_experts else norm,
            after_mlp=keys.norm("post_feedforward_layernorm"),
            layer_input=own if size else None,
            scalar="layer_scalar",
        )
        for mixer, own_mlp in ((mixer, mlp if mixer.source is None else wide) for mixer in mixers)
    ]
    cap = "final_logit_softcapping"
    return keys.model(
        layers,
        is_tied=True,
        embedding_multiplier=math.sqrt(keys.hidden_size),
        logit_cap=None if fields.values.get(cap) is None else fields.number(cap),
        layer_inputs=_inputs(keys, size) if size else None,
    )


def _inputs(keys: Keys, size: int) -> LayerInputs:
    rows = keys.fields.size("vocab_size_per_layer_input", keys.vocab_size)
    if rows != keys.vocab_size:
        keys.fields.reject("vocab_size_per_layer_input", f"vocab_size, {keys.vocab_size}, is required")
    return LayerInputs(
        size=size,
        table="model.embed_tokens_per_layer.weight",
        table_multiplier=math.sqrt(size),
        projection=Linear("model.per_layer_model_projection"),
        projection_multiplier=1 / math.sqrt(keys.hidden_size),
        norm=keys.norm("model.per_layer_projection_norm"),
        multiplier=math.sqrt(0.5),
    )


def _mixture(keys: Keys, mlp: Mlp) -> Mixture:
    """Experts beside a layer's MLP; both take in the same rows, each after a norm of its own."""
    routes = routing(
        keys.fields,
        "router.proj",
        chosen_key="top_k_experts",
        is_normalized=True,
        multipliers="router.per_expert_scale",
        norm=keys.norm("router.norm", has_weight=False),
        input_weights="router.scale",
        input_multiplier=1 / math.sqrt(keys.hidden_size),
    )
    return Mixture(
        routes,
        experts(keys.fields.size("moe_intermediate_size"), mlp.activation, "experts", names=None),
        shared=mlp,
        before_experts=keys.norm("pre_feedforward_layernorm_2"),
        after_experts=keys.norm("post_feedforward_layernorm_2"),
        before_shared=keys.norm("pre_feedforward_layernorm"),
        after_shared=keys.norm("post_feedforward_layernorm_1"),
    )


def _mixer(keys: Keys, layer: int, slides: bool) -> Attention:
    fields = keys.fields
    shares = fields.flag("attention_k_eq_v", False) and not slides
    if not slides:  # one layer's own sizes, or as published those of all that see everything
        own = fields.section("per_layer_config").section(str(layer))
        heads, head_dim = keys.num_key_value_heads, own.values.get("head_dim")
        if shares and own.values.get("num_key_value_heads") is None:
            heads = fields.size("num_global_key_value_heads", heads)
        head_dim = fields.size("global_head_dim", 512) if head_dim is None else own.size("head_dim")
        keys = replace(keys, head_dim=head_dim, num_key_value_heads=own.size("num_key_value_heads", heads))
    if keys.num_attention_heads % keys.num_key_value_heads or keys.head_dim % 2:
        fields.reject("per_layer_config", "even head sizes and key-value heads that divide the others are required")
    rope = rope_of(keys, SLIDING, 10000.0) if slides else rope_of(keys, FULL, 1e6)
    return keys.biased_attention(
        rope,
        scale=1.0,
        window=keys.window(512) if slides else None,
        value_norm=keys.norm("self_attn.v_norm", has_weight=False),
        keys_are_values=shares,
        **keys.head_norms(),
    )


def _count(fields: Fields, key: str, default: int) -> int:
    """A number that may be 0; null counts as that."""
    if key not in fields.values:
        return default
    return 0 if fields.values[key] in (0, None) else fields.size(key)
