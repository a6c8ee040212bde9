"""LFM2: short convolutions between gates, attention in some layers."""

from mxconv.arch.config import ModelConfig
from mxconv.arch.elements import Convolution, Linear, Mlp, ShortConvolution
from mxconv.arch.families.keys import Keys
from mxconv.arch.fields import Fields

CONVOLUTION = "conv"


def lfm2(fields: Fields) -> ModelConfig:
    """`model_type` lfm2."""
    keys = Keys.read(_renamed(fields), max_positions=128_000, eps=1e-5, eps_key="norm_eps", num_key_value_heads=8)
    fields, bias = keys.fields, fields.flag("conv_bias", False)
    attention = keys.attention(
        keys.rope(1e6),
        output=Linear("self_attn.out_proj"),
        query_norm=keys.norm("self_attn.q_layernorm"),
        key_norm=keys.norm("self_attn.k_layernorm"),
    )
    convolution = ShortConvolution(
        size=keys.hidden_size,
        convolution=Convolution("conv.conv", fields.size("conv_L_cache", 3), bias),
        inputs=Linear("conv.in_proj", bias),
        output=Linear("conv.out_proj", bias),
    )
    mlp = Mlp(
        _inner_size(fields),
        "silu",
        up=Linear("feed_forward.w3"),
        down=Linear("feed_forward.w2"),
        gate=Linear("feed_forward.w1"),
    )
    attending = fields.values.get("full_attn_idxs")
    layers = [
        keys.layer(
            convolution if recurs else attention,
            mlp,
            before_mixer=keys.norm("operator_norm"),
            before_mlp=keys.norm("ffn_norm"),
        )
        for recurs in keys.kinds(CONVOLUTION, lambda layer: isinstance(attending, list) and layer not in attending)
    ]
    return keys.model(layers, is_tied=True, final_norm=keys.norm("model.embedding_norm"))


def _renamed(fields: Fields) -> Fields:
    """Rename keys of older files as transformers does."""
    older = {"tie_embedding": "tie_word_embeddings", "block_ff_dim": "intermediate_size"}
    given = {name: fields.values[key] for key, name in older.items() if fields.values.get(key) is not None}
    return Fields({**fields.values, **given}, fields.name)


def _inner_size(fields: Fields) -> int:
    """Two thirds of what the file says, times a number, rounded up to a multiple of another."""
    size = fields.size("intermediate_size")
    if not fields.flag("block_auto_adjust_ff_dim", True):
        return size
    size = int(2 * size / 3)
    if "block_ffn_dim_multiplier" in fields.values and fields.values["block_ffn_dim_multiplier"] is None:
        return size
    size, unit = int(fields.number("block_ffn_dim_multiplier", 1.0) * size), fields.size("block_multiple_of", 256)
    return unit * ((size + unit - 1) // unit)
