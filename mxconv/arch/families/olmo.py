"""OLMo 2 and 3: norms of what a layer adds instead of what it takes in, and of whole rows of queries and keys.

OLMoE has experts in every layer, and queries and keys that may be clipped.
"""

from mxconv.arch.config import ModelConfig
from mxconv.arch.description import LayerParts
from mxconv.arch.elements import Mixture
from mxconv.arch.families.expert_keys import experts, routing
from mxconv.arch.families.gemma import has_sections, rope_of
from mxconv.arch.families.keys import FULL, SLIDING, Keys
from mxconv.arch.fields import Fields
from mxconv.arch.rope_parameters import RopeParameters


def olmo2(fields: Fields) -> ModelConfig:
    """`model_type` olmo2."""
    keys = Keys.read(fields, max_positions=2048, eps=1e-5)
    return keys.model([_layer(keys, keys.rope(), None)] * keys.num_hidden_layers)


def olmo3(fields: Fields) -> ModelConfig:
    """`model_type` olmo3: three of four layers see a window, and only the fourth's rotations are scaled."""
    keys = Keys.read(fields, max_positions=2048, eps=1e-5)
    window = keys.window(4096)
    near, far = _rope(keys, SLIDING), _rope(keys, FULL)
    kinds = keys.layer_kinds(lambda layer: (layer + 1) % 4 != 0)
    return keys.model([_layer(keys, near, window) if slides else _layer(keys, far, None) for slides in kinds])


def _rope(keys: Keys, kind: str) -> RopeParameters:
    theta = 500000.0
    return rope_of(keys, kind, theta if has_sections(keys) else keys.fields.number("rope_theta", theta, at_least=1))


def _layer(keys: Keys, rope: RopeParameters, window: int | None) -> LayerParts:
    mixer = keys.biased_attention(rope, window=window, norm_span="row", **keys.head_norms())
    return keys.layer(
        mixer,
        keys.gated_mlp(keys.activation("hidden_act", "silu")),
        before_mixer=None,
        before_mlp=None,
        after_mixer=keys.norm("post_attention_layernorm"),
        after_mlp=keys.norm("post_feedforward_layernorm"),
    )


def olmoe(fields: Fields) -> ModelConfig:
    """`model_type` olmoe."""
    keys = Keys.read(fields, max_positions=4096, eps=1e-5)
    clip = None if fields.values.get("clip_qkv") is None else fields.number("clip_qkv")
    mixer = keys.biased_attention(keys.rope(), norm_span="row", clip=clip, **keys.head_norms())
    mixture = Mixture(
        routing(fields, "mlp.gate", is_normalized=fields.flag("norm_topk_prob", False)),
        experts(fields.size("intermediate_size"), keys.activation("hidden_act", "silu")),
    )
    return keys.model([keys.layer(mixer, mixture)] * keys.num_hidden_layers)
