"""Granite 4: Granite's multipliers over Mamba-2, attention in some layers, and experts beside an MLP in some models."""

from mxconv.arch.config import ModelConfig
from mxconv.arch.elements import Linear, Mlp
from mxconv.arch.families.granitemoe import RENAMED, granite_experts
from mxconv.arch.families.keys import FULL, Keys
from mxconv.arch.families.mamba2 import state_space
from mxconv.arch.families.qwen3_5 import LINEAR
from mxconv.arch.fields import Fields

OLDER_NAMES = {"mamba": LINEAR, "attention": FULL}


def granite_hybrid(fields: Fields) -> ModelConfig:
    """`model_type` granitemoehybrid; with `num_local_experts` 0 it has no experts."""
    keys = Keys.read(_renamed(fields), max_positions=2048)
    activation, bias = keys.activation("hidden_act", "silu"), fields.flag("attention_bias", False)
    rope = keys.rope() if fields.values.get("position_embedding_type") == "rope" else None
    attention = keys.attention(rope, bias, bias, scale=fields.number("attention_multiplier", 1.0))
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
    mlp = granite_experts(fields, activation, shared) if has_experts else shared
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
    """With the names of layers that transformers gives to those of older files."""
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
