"""Llama 4 (text): layers that rotate and see chunks, others that do neither, and experts whose input is scaled."""

from dataclasses import replace

from mxconv.arch.config import ModelConfig
from mxconv.arch.description import Attention, Temperature
from mxconv.arch.elements import Activation, Mixture, Mlp
from mxconv.arch.families.expert_keys import experts, routing, shared_mlp
from mxconv.arch.families.keys import FULL, Keys
from mxconv.arch.fields import Fields

CHUNKED = "chunked_attention"
MLP = "feed_forward"


def llama4(fields: Fields) -> ModelConfig:
    """`model_type` llama4_text, alone or as the text tower of llama4."""
    keys = Keys.read(fields, max_positions=131072, eps=1e-5, num_key_value_heads=8, head_dim=128)
    count, activation = keys.num_hidden_layers, keys.activation("hidden_act", "silu")
    period, step = fields.size("no_rope_layer_interval", 4), fields.size("interleave_moe_layer_step", 1)
    rotates = fields.values.get("no_rope_layers") or [int((layer + 1) % period != 0) for layer in range(count)]
    if not isinstance(rotates, list) or len(rotates) < count or not all(each in (0, 1) for each in rotates):
        fields.reject("no_rope_layers", f"a list of num_hidden_layers, {count}, numbers 0 or 1 is required")
    kinds = fields.values.get("layer_types") or [CHUNKED if turns else FULL for turns in rotates[:count]]
    if not isinstance(kinds, list) or len(kinds) != count or not all(kind in (CHUNKED, FULL) for kind in kinds):
        fields.reject("layer_types", f"a list of {count} names, each {CHUNKED} or {FULL}, is required")
    sparse = fields.values.get("moe_layers")
    if sparse is None:
        sparse = list(range(step - 1, count, step))
    if not isinstance(sparse, list) or not all(type(layer) is int for layer in sparse):
        fields.reject("moe_layers", "a list of layer numbers is required")
    mixture = _mixture(fields, activation)
    dense = shared_mlp(fields.size("intermediate_size_mlp", 16384), activation, MLP)
    layers = []
    for layer in range(count):
        mlp: Mlp | Mixture = mixture if layer in sparse else dense
        layers.append(keys.layer(_mixer(keys, bool(rotates[layer]), kinds[layer] == CHUNKED), mlp))
    return keys.model(layers)


def _mixer(keys: Keys, rotates: bool, is_chunked: bool) -> Attention:
    fields = keys.fields
    has_chunks = is_chunked and fields.values.get("attention_chunk_size", 8192) is not None
    mixer = keys.biased_attention(
        replace(keys.rope(theta=5e5), is_interleaved=True) if rotates else None,
        window=fields.size("attention_chunk_size", 8192) if has_chunks else None,
        is_chunked=has_chunks,
    )
    if rotates and fields.flag("use_qk_norm", True):
        return replace(mixer, norms_rotated=True, **keys.head_norms(has_weight=False))
    if not rotates and fields.values.get("attn_temperature_tuning", True):  # published as a number, too
        tuned = Temperature(fields.number("attn_scale", 0.1), fields.size("floor_scale", 8192), first=1)
        return replace(mixer, temperature=tuned)
    return mixer


def _mixture(fields: Fields, activation: Activation) -> Mixture:
    size = fields.size("intermediate_size", 8192)
    return Mixture(
        routing(fields, f"{MLP}.router", experts_keys=("num_local_experts",), score="sigmoid"),
        experts(size, activation, f"{MLP}.experts", names=None),
        shared=shared_mlp(size, activation, f"{MLP}.shared_expert"),
        scales_input=True,
    )
