"""OLMoE: experts in every layer, norms of whole rows of queries and keys, which may be clipped."""

from mxconv.arch.config import ModelConfig
from mxconv.arch.families.expert_keys import experts, routing
from mxconv.arch.families.keys import Keys
from mxconv.arch.fields import Fields
from mxconv.arch.mixture import Mixture


def olmoe(fields: Fields) -> ModelConfig:
    """`model_type` olmoe."""
    keys = Keys.read(fields, max_positions=4096, eps=1e-5)
    bias = fields.flag("attention_bias", False)
    clip = None if fields.values.get("clip_qkv") is None else fields.number("clip_qkv")
    mixer = keys.attention(keys.rope(), bias, bias, norm_span="row", clip=clip, **keys.head_norms())
    mixture = Mixture(
        routing(fields, "mlp.gate", is_normalized=fields.flag("norm_topk_prob", False)),
        experts(fields.size("intermediate_size"), keys.activation("hidden_act", "silu")),
    )
    return keys.model([keys.layer(mixer, mixture)] * keys.num_hidden_layers)
