"""GPT-2: learned positions, layer norms, biases everywhere, and matrices that are stored turned."""

from dataclasses import replace

from mxconv.arch.config import ModelConfig
from mxconv.arch.elements import Linear, Mlp
from mxconv.arch.families.keys import LAYER_NORM, Keys
from mxconv.arch.fields import Fields

NAMES = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_positions": "max_position_embeddings",
}


def gpt2(fields: Fields) -> ModelConfig:
    """`model_type` gpt2, whose files have names of their own for all sizes."""
    for key in ("scale_attn_by_inverse_layer_idx", "add_cross_attention"):
        if fields.flag(key, False):
            fields.reject(key, "mxconv supports false", "Use a model of that kind.")
    fields = Keys.ignoring(fields, "num_key_value_heads", "head_dim")
    renamed = {NAMES.get(key, key): value for key, value in fields.values.items()}
    fields = replace(fields, values=renamed)
    keys = Keys.read(fields, max_positions=1024, eps=1e-5, eps_key="layer_norm_epsilon", **LAYER_NORM)
    both = Linear("attn.c_attn", True, is_transposed=True)
    scales = fields.flag("scale_attn_weights", True)
    mixer = keys.attention(
        None, query=both, key=both, value=both, fused="blocks", output=Linear("attn.c_proj", True, is_transposed=True)
    )
    mlp = Mlp(
        size=fields.size("n_inner", 4 * keys.hidden_size),
        activation=keys.activation("activation_function", "gelu_new"),
        up=Linear("mlp.c_fc", True, is_transposed=True),
        down=Linear("mlp.c_proj", True, is_transposed=True),
    )
    layer = keys.layer(
        mixer if scales else replace(mixer, scale=1.0),
        mlp,
        before_mixer=keys.norm("ln_1"),
        before_mlp=keys.norm("ln_2"),
    )
    return keys.model(
        [layer] * keys.num_hidden_layers,
        is_tied=True,
        final_norm=keys.norm("ln_f"),
        embedding="wte.weight",
        positions="wpe.weight",
        layer_prefix="h",
        towers=(("transformer.", ""), ("", "")),
    )
