"""GPT-2, GPT-NeoX and StarCoder 2: layer norms, biases everywhere, and an MLP without a gate.

GPT-2 learns positions, and its matrices are stored turned. In GPT-NeoX and Pythia attention and MLP are side by side,
and one tensor has a query, a key and a value a head.
"""

from dataclasses import replace

from mxconv.arch.config import ModelConfig
from mxconv.arch.elements import Linear, Mlp
from mxconv.arch.families.keys import LAYER_NORM, Keys
from mxconv.arch.fields import Fields
from mxconv.arch.rope_parameters import RopeParameters

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


def gpt_neox(fields: Fields) -> ModelConfig:
    """`model_type` gpt_neox; a quarter of each head rotates where `rotary_pct` says nothing else."""
    fields = Keys.ignoring(fields, "num_key_value_heads")
    keys = Keys.read(fields, max_positions=2048, eps=1e-5, eps_key="layer_norm_eps", **LAYER_NORM)
    bias = fields.flag("attention_bias", True)
    both = Linear("attention.query_key_value", bias)
    output = Linear("attention.dense", bias)
    mixer = keys.attention(_rope(keys), query=both, key=both, value=both, fused="heads", output=output)
    mlp = keys.plain_mlp(keys.activation("hidden_act", "gelu"), "mlp.dense_h_to_4h", "mlp.dense_4h_to_h", True)
    layer = keys.layer(mixer, mlp, is_parallel=fields.flag("use_parallel_residual", True))
    return keys.model(
        [layer] * keys.num_hidden_layers,
        final_norm=keys.norm("gpt_neox.final_layer_norm"),
        embedding="gpt_neox.embed_in.weight",
        head="embed_out",
        layer_prefix="gpt_neox.layers",
        towers=(("lm_head.", "embed_out."), ("", "")),
    )


def _rope(keys: Keys) -> RopeParameters:
    """In the older style `rotary_emb_base` and `rotary_pct`, which `rope_parameters` supersedes."""
    fields, section = keys.fields, keys.fields.section("rope_parameters").values
    theta = fields.number("rotary_emb_base", 10000.0, at_least=1) if section.get("rope_theta") is None else 10000.0
    share = fields.number("rotary_pct", 0.25) if section.get("partial_rotary_factor") is None else 0.25
    return keys.rope(theta, share)


def starcoder2(fields: Fields) -> ModelConfig:
    """`model_type` starcoder2."""
    keys = Keys.read(fields, max_positions=4096, eps=1e-5, eps_key="norm_epsilon", num_key_value_heads=2, **LAYER_NORM)
    bias = fields.flag("use_bias", True)
    mlp = keys.plain_mlp(keys.activation("hidden_act", "gelu_pytorch_tanh"), "mlp.c_fc", "mlp.c_proj", bias)
    layer = keys.layer(keys.attention(keys.rope(), bias, bias, window=keys.window(None)), mlp)
    return keys.model([layer] * keys.num_hidden_layers, is_tied=True)
