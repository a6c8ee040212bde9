"""Granite: Llama with multipliers of embeddings, of what layers add, of attention and of logits.

Granite MoE has experts, always stacked; a row's shares are the softmax of the experts that it chose. Granite 4 has
Mamba-2, attention in some layers, and in some models experts beside an MLP.
"""

from dataclasses import replace

from mxconv.arch.config import ModelConfig
from mxconv.arch.elements import Activation, Linear, Mixture, Mlp
from mxconv.arch.families.expert_keys import experts, routing
from mxconv.arch.families.keys import FULL, Keys
from mxconv.arch.families.mamba2 import state_space
from mxconv.arch.families.qwen3_5 import LINEAR
from mxconv.arch.fields import Fields

RENAMED = (  # as transformers 5 has them in memory
    (".experts.gate_up_proj", ".input_linear.weight"),
    (".experts.down_proj", ".output_linear.weight"),
    (".block_sparse_moe.router.weight", ".block_sparse_moe.router.layer.weight"),
)
OLDER_NAMES = {"mamba": LINEAR, "attention": FULL}


def granite(fields: Fields) -> ModelConfig:
    """`model_type` granite."""
    keys = Keys.read(fields, max_positions=2048)
    mixer = keys.biased_attention(keys.rope(), scale=fields.number("attention_multiplier", 1.0))
    mlp = keys.gated_mlp(keys.activation("hidden_act", "silu"), fields.flag("mlp_bias", False))
    layer = keys.layer(mixer, mlp, residual_multiplier=fields.number("residual_multiplier", 1.0))
    return keys.model(
        [layer] * keys.num_hidden_layers,
        embedding_multiplier=fields.number("embedding_multiplier", 1.0),
        logit_multiplier=1 / fields.number("logits_scaling", 1.0),
    )


def granitemoe(fields: Fields) -> ModelConfig:
    """`model_type` granitemoe."""
    dense = granite(Keys.ignoring(fields, "mlp_bias"))
    activation = Keys.read(fields, max_positions=2048).activation("hidden_act", "silu")
    mixture = _experts(fields, activation)
    return replace(dense, layers=tuple(replace(layer, mlp=mixture) for layer in dense.layers), renamed=RENAMED)


def _experts(fields: Fields, activation: Activation, shared: Mlp | None = None) -> Mixture:
    """Granite's, and those of Granite 4, which have an MLP for all rows beside them."""
    stacked = "block_sparse_moe.input_linear.weight", "block_sparse_moe.output_linear.weight"
    return Mixture(
        routing(
            fields, "block_sparse_moe.router.layer", experts_keys=("num_local_experts",), score="softmax_of_chosen"
        ),
        experts(fields.size("intermediate_size"), activation, names=None, stacked=stacked),
        shared=shared,
    )


def granite_hybrid(fields: Fields) -> ModelConfig:
    """`model_type` granitemoehybrid; with `num_local_experts` 0 it has no experts."""
    keys = Keys.read(_renamed(fields), max_positions=2048)
    activation = keys.activation("hidden_act", "silu")
    rope = keys.rope() if fields.values.get("position_embedding_type") == "rope" else None
    attention = keys.biased_attention(rope, scale=fields.number("attention_multiplier", 1.0))
    mixer = state_space(
        keys,
        "mamba.",
        _sizes(keys),
        bias=fields.flag("mamba_proj_bias", False),
        convolution_bias=fields.flag("mamba_conv_bias", True),
        activation=activation,
    )
    both = Linear("shared_mlp.input_linear")
    shared = Mlp(
        fields.size("shared_intermediate_size", 1024),
        activation,
        up=both,
        down=Linear("shared_mlp.output_linear"),
        gate=both,
        fused=True,
    )
    has_experts = fields.values.get("num_local_experts", 8) != 0
    mlp = _experts(fields, activation, shared) if has_experts else shared
    multiplier = fields.number("residual_multiplier", 1.0)
    layers = [
        keys.layer(mixer if recurs else attention, mlp, residual_multiplier=multiplier)
        for recurs in keys.kinds(LINEAR, lambda layer: True)
    ]
    return keys.model(
        layers,
        embedding_multiplier=fields.number("embedding_multiplier", 1.0),
        logit_multiplier=1 / fields.number("logits_scaling", 1.0),
        renamed=RENAMED,
    )


def _renamed(fields: Fields) -> Fields:
    """Rename layers of older files as transformers does."""
    kinds = fields.values.get("layer_types", fields.values.get("layers_block_type"))
    if isinstance(kinds, list):
        kinds = [OLDER_NAMES.get(kind, kind) if isinstance(kind, str) else kind for kind in kinds]
    return Fields({**fields.values, "layer_types": kinds}, fields.name)


def _sizes(keys: Keys) -> dict[str, int]:
    fields = keys.fields
    num_heads, size = fields.size("mamba_n_heads", 128), fields.size("mamba_expand", 2) * keys.hidden_size
    given = fields.values.get("mamba_d_head")
    head_dim = size // num_heads if given in (None, "auto") else fields.size("mamba_d_head")
    if head_dim * num_heads != size:
        fields.reject("mamba_n_heads", f"heads of together {size} values are required")
    return {
        "num_heads": num_heads,
        "head_dim": head_dim,
        "state_size": fields.size("mamba_d_state", 256),
        "num_groups": fields.size("mamba_n_groups", 1),
        "kernel_size": fields.size("mamba_d_conv", 4),
    }
