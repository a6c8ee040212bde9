"""GPT-NeoX and Pythia: attention and MLP side by side, each after a layer norm; a query, a key and a value a head."""

from mxconv.arch.config import ModelConfig
from mxconv.arch.elements import Linear
from mxconv.arch.families.keys import LAYER_NORM, Keys
from mxconv.arch.fields import Fields
from mxconv.arch.rope_parameters import RopeParameters


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
