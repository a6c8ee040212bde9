"""Qwen 3.5: gated DeltaNet, and gated attention in every fourth layer; dense, or with experts in every layer.

Qwen3-Next has the same mixers, their tensors fused key head by key head, and experts in most layers.
"""

from mxconv.arch.config import ModelConfig
from mxconv.arch.description import Attention
from mxconv.arch.elements import Convolution, GatedDeltaNet, Linear, Mixture, Mlp
from mxconv.arch.families.expert_keys import gated_experts, mlps, sparse_layers
from mxconv.arch.families.keys import Keys
from mxconv.arch.families.mtp_modules import beside
from mxconv.arch.fields import Fields

LINEAR = "linear_attention"
SILU = ("silu", "swish")


def qwen3_5(fields: Fields) -> ModelConfig:
    """`model_type` qwen3_5_text, alone or as the text tower of qwen3_5."""
    keys = read_keys(fields)
    return _model(keys, keys.gated_mlp(keys.activation("hidden_act", "silu", SILU)))


def qwen3_5_moe(fields: Fields) -> ModelConfig:
    """`model_type` qwen3_5_moe_text, alone or as the text tower of qwen3_5_moe."""
    keys = read_keys(fields)
    return _model(keys, gated_experts(fields, keys.activation("hidden_act", "silu", SILU)))


def read_keys(fields: Fields, num_key_value_heads: int = 4) -> Keys:
    """Read the keys of these models, and of Qwen3-Next."""
    return Keys.read(fields, max_positions=32768, head_dim=256, num_key_value_heads=num_key_value_heads, offset=1.0)


def _model(keys: Keys, mlp: Mlp | Mixture) -> ModelConfig:
    attention, delta_net = gated_attention(keys), gated_delta_net(keys, fused=False)
    layers = [keys.layer(delta_net if recurs else attention, mlp) for recurs in recurrent_layers(keys)]
    return keys.model(layers, mtp=beside(keys, keys.layer(attention, mlp)))


def recurrent_layers(keys: Keys) -> tuple[bool, ...]:
    """Whether the mixer of each layer is a gated DeltaNet."""
    return keys.kinds(LINEAR, lambda layer: (layer + 1) % keys.fields.size("full_attention_interval", 4) != 0)


def gated_attention(keys: Keys) -> Attention:
    """Attention whose query tensor holds a gate beside each query."""
    return keys.biased_attention(keys.rope(share=0.25), is_gated=True, **keys.head_norms())


def gated_delta_net(keys: Keys, fused: bool) -> GatedDeltaNet:
    """The mixer of the other layers; `fused` as the description has it."""
    fields, prefix = keys.fields, "linear_attn."
    num_key_heads, num_value_heads = fields.size("linear_num_key_heads", 16), fields.size("linear_num_value_heads", 32)
    if num_value_heads % num_key_heads:
        fields.reject("linear_num_value_heads", f"a multiple of linear_num_key_heads, {num_key_heads}, is required")
    names = (
        ("in_proj_qkvz",) * 2 + ("in_proj_ba",) * 2 if fused else tuple(f"in_proj_{part}" for part in ("qkv", *"zba"))
    )
    mixed, gate, beta, decay = (Linear(prefix + name) for name in names)
    return GatedDeltaNet(
        num_key_heads=num_key_heads,
        num_value_heads=num_value_heads,
        key_dim=fields.size("linear_key_head_dim", 128),
        value_dim=fields.size("linear_value_head_dim", 128),
        convolution=Convolution(f"{prefix}conv1d", fields.size("linear_conv_kernel_dim", 4)),
        queries_keys_values=mixed,
        gate=gate,
        beta=beta,
        decay=decay,
        decay_bias=f"{prefix}dt_bias",
        decay_log=f"{prefix}A_log",
        norm=keys.norm(f"{prefix}norm", offset=0.0),
        output=Linear(f"{prefix}out_proj"),
        fused=fused,
    )


def qwen3_next(fields: Fields) -> ModelConfig:
    """`model_type` qwen3_next; with `num_experts` 0 it has none."""
    keys = read_keys(fields, num_key_value_heads=2)
    attention, delta_net, parts = gated_attention(keys), gated_delta_net(keys, fused=True), _mlps(keys)
    layers = [
        keys.layer(delta_net if recurs else attention, mlp)
        for recurs, mlp in zip(recurrent_layers(keys), parts, strict=True)
    ]
    return keys.model(layers, mtp=beside(keys, keys.layer(attention, parts[-1])))


def _mlps(keys: Keys) -> list[Mlp | Mixture]:
    activation = keys.activation("hidden_act", "silu", SILU)
    if keys.fields.values.get("num_experts") == 0:
        return [keys.gated_mlp(activation)] * keys.num_hidden_layers
    mixture = gated_experts(keys.fields, activation, keys.fields.flag("norm_topk_prob", True))
    return mlps(sparse_layers(keys), mixture, keys, activation)
