"""Llama, and families that differ from it in one thing or two; every other family is told by what it does differently.

Arcee           squared ReLU in an MLP without a gate
Seed-OSS        a switch for each bias
SmolLM3         every fourth layer rotates nothing
Command R7B, A  attention and MLP side by side after one layer norm; no rotation where all positions are seen
EXAONE 4        norms of what a layer adds, of each query and key; layers that see all positions rotate nothing
HunYuan dense   queries and keys are normed after their rotation, whose base a fixed factor stretches
Mistral         each layer sees a window; Ministral 3: queries that grow with their position
Mixtral         experts in every layer, under names of their own. transformers 5 has other names for them, and stacks,
                in memory and where it is asked to save what it has
Phi 3, 4        one tensor for queries, keys and values, one for gate and MLP, and LongRoPE
"""

from dataclasses import replace

from mxconv.arch.config import ModelConfig
from mxconv.arch.description import Temperature
from mxconv.arch.elements import Linear, Mixture
from mxconv.arch.families.expert_keys import experts, routing
from mxconv.arch.families.keys import Keys
from mxconv.arch.fields import Fields
from mxconv.arch.rope_parameters import scaling_of


def llama(fields: Fields) -> ModelConfig:
    """`model_type` llama, and what has its layers under another name."""
    keys = Keys.read(fields, max_positions=2048)
    activation = keys.activation("hidden_act", "silu", ("silu",))
    mixer = keys.biased_attention(keys.rope())
    layer = keys.layer(mixer, keys.gated_mlp(activation, fields.flag("mlp_bias", False)))
    return keys.model([layer] * keys.num_hidden_layers)


def arcee(fields: Fields) -> ModelConfig:
    """`model_type` arcee."""
    keys = Keys.read(fields, max_positions=4096, eps=1e-5)
    activation, mlp_bias = keys.activation("hidden_act", "relu2"), fields.flag("mlp_bias", False)
    mlp = keys.plain_mlp(activation, "mlp.up_proj", "mlp.down_proj", mlp_bias)
    layer = keys.layer(keys.biased_attention(keys.rope()), mlp)
    return keys.model([layer] * keys.num_hidden_layers)


def seed_oss(fields: Fields) -> ModelConfig:
    """`model_type` seed_oss."""
    keys = Keys.read(fields, max_positions=524288, num_key_value_heads=8, head_dim=128)
    mixer = keys.attention(keys.rope(), fields.flag("attention_bias", True), fields.flag("attention_out_bias", False))
    mlp = keys.gated_mlp(keys.activation("hidden_act", "silu"), fields.flag("mlp_bias", False))
    return keys.model([keys.layer(mixer, mlp)] * keys.num_hidden_layers)


def smollm3(fields: Fields) -> ModelConfig:
    """`model_type` smollm3; `no_rope_layers` has a 1 where a layer rotates."""
    keys = Keys.read(fields, max_positions=32768, num_key_value_heads=4)
    rope, count = keys.rope(theta=2e6), keys.num_hidden_layers
    period = fields.size("no_rope_layer_interval", 4)
    rotates = fields.values.get("no_rope_layers")
    if rotates is None:
        rotates = [int((layer + 1) % period != 0) for layer in range(count)]
    if not isinstance(rotates, list) or len(rotates) != count or not all(each in (0, 1) for each in rotates):
        fields.reject("no_rope_layers", f"a list of num_hidden_layers, {count}, numbers 0 or 1 is required")
    window = keys.window(None) if fields.flag("use_sliding_window", False) else None
    slides = keys.layer_kinds(lambda layer: window is not None and not rotates[layer])
    mlp = keys.gated_mlp(keys.activation("hidden_act", "silu"), fields.flag("mlp_bias", False))
    layers = [
        keys.layer(keys.biased_attention(rope if turns else None, window=window if near else None), mlp)
        for turns, near in zip(rotates, slides, strict=True)
    ]
    return keys.model(layers, is_tied=True)


def cohere2(fields: Fields) -> ModelConfig:
    """`model_type` cohere2."""
    keys = Keys.read(fields, max_positions=8192, eps=1e-5, eps_key="layer_norm_eps", kind="layer")
    rope = replace(keys.rope(), is_interleaved=True)
    window = keys.window(4096)
    mlp = keys.gated_mlp(keys.activation("hidden_act", "silu"))
    norm = keys.norm("input_layernorm")
    layers = []
    for slides in keys.layer_kinds(lambda layer: (layer + 1) % fields.size("sliding_window_pattern", 4) != 0):
        near = window if slides else None
        mixer = keys.biased_attention(None if near is None else rope, window=near)
        layers.append(keys.layer(mixer, mlp, before_mixer=norm, before_mlp=norm, is_parallel=True))
    return keys.model(layers, is_tied=True, logit_multiplier=fields.number("logit_scale", 0.0625))


def exaone4(fields: Fields) -> ModelConfig:
    """`model_type` exaone4; without windows all layers rotate."""
    keys = Keys.read(fields, max_positions=2048, eps=1e-5)
    rope, window = keys.rope(), keys.window(4096)
    mlp = keys.gated_mlp(keys.activation("hidden_act", "silu"))
    norms = keys.head_norms()
    layers = []
    for slides in keys.layer_kinds(lambda layer: _slides(keys, layer)):
        turns = rope if window is None or slides else None
        layer = keys.layer(
            keys.attention(turns, window=window if slides else None, **norms),
            mlp,
            before_mixer=None,
            before_mlp=None,
            after_mixer=keys.norm("post_attention_layernorm"),
            after_mlp=keys.norm("post_feedforward_layernorm"),
        )
        layers.append(layer)
    return keys.model(layers)


def _slides(keys: Keys, layer: int) -> bool:
    """`sliding_window_pattern`: every so many layers one sees all; or a text such as LLLG, L for a window."""
    pattern = keys.fields.values.get("sliding_window_pattern", 4)
    if keys.window(4096) is None:
        return False
    if isinstance(pattern, str) and pattern and set(pattern) <= {"L", "G"}:
        return layer != keys.num_hidden_layers - 1 and pattern[layer % len(pattern)] == "L"
    if type(pattern) is not int or pattern < 1:
        keys.fields.reject("sliding_window_pattern", "a number from 1 on, or a text of L and G, is required")
    return (layer + 1) % pattern != 0


def hunyuan_v1_dense(fields: Fields) -> ModelConfig:
    """`model_type` hunyuan_v1_dense; `alpha` makes scaling of type dynamic a constant one."""
    section = scaling_of(fields)
    rope_type, alpha = section.values.get("rope_type", section.values.get("type")), section.values.get("alpha")
    is_stretched = rope_type == "dynamic" and bool(alpha)
    if is_stretched:  # by transformers' own code for this family, which always rotates whole heads
        fields = Keys.ignoring(fields, "partial_rotary_factor")
    keys = Keys.read(fields, max_positions=2048, eps=1e-5)
    rope = keys.rope()
    if is_stretched:
        size = keys.head_dim
        rope = replace(rope, theta=rope.theta * section.number("alpha") ** (size / max(size - 2, 1)))
    mixer = keys.biased_attention(
        rope,
        query_norm=keys.norm("self_attn.query_layernorm"),
        key_norm=keys.norm("self_attn.key_layernorm"),
        norms_rotated=True,
    )
    mlp = keys.gated_mlp(keys.activation("hidden_act", "silu"))
    return keys.model([keys.layer(mixer, mlp)] * keys.num_hidden_layers)


def mistral(fields: Fields) -> ModelConfig:
    """`model_type` mistral."""
    keys = Keys.read(fields, max_positions=131072)
    keys.activation("hidden_act", "silu", ("silu",))
    mixer = keys.attention(keys.rope(), window=keys.window(4096))
    return keys.model([keys.layer(mixer, keys.gated_mlp())] * keys.num_hidden_layers)


def ministral3(fields: Fields) -> ModelConfig:
    """`model_type` ministral3; `llama_4_scaling_beta` lies among its rotations' parameters."""
    keys = Keys.read(fields, max_positions=262144, eps=1e-5, num_key_value_heads=8, head_dim=128)
    rope = keys.rope(theta=1e6)
    section = scaling_of(fields)
    temperature = None
    if section.values.get("llama_4_scaling_beta"):
        beta = section.number("llama_4_scaling_beta")
        temperature = Temperature(beta, section.size("original_max_position_embeddings"))
    mixer = keys.attention(rope, window=keys.window(None), temperature=temperature)
    mlp = keys.gated_mlp(keys.activation("hidden_act", "silu"))
    return keys.model([keys.layer(mixer, mlp)] * keys.num_hidden_layers)


def mixtral(fields: Fields) -> ModelConfig:
    """`model_type` mixtral."""
    keys = Keys.read(fields, max_positions=131072, eps=1e-5, num_key_value_heads=8)
    activation = keys.activation("hidden_act", "silu")
    mixture = Mixture(
        routing(fields, "block_sparse_moe.gate", experts_keys=("num_experts", "num_local_experts"), is_normalized=True),
        experts(fields.size("intermediate_size"), activation, "block_sparse_moe.experts", ("w1", "w3", "w2")),
    )
    mixer = keys.attention(keys.rope(theta=1e6), window=keys.window(None))
    model = keys.model([keys.layer(mixer, mixture)] * keys.num_hidden_layers)
    return replace(model, renamed=((".mlp.", ".block_sparse_moe."),))


def phi3(fields: Fields) -> ModelConfig:
    """`model_type` phi3.

    LongRoPE has other factors for texts beyond the original context, and would rotate again what a cache holds; mxconv
    runs the model within that context.
    """
    keys = Keys.read(fields, max_positions=4096, eps=1e-5)
    rope = keys.rope(share=1.0)
    if rope.rope_type == "longrope":
        original = min(keys.max_position_embeddings, rope.original_max_position_embeddings)
        keys = replace(keys, max_position_embeddings=original)
    both = Linear("self_attn.qkv_proj")
    mixer = keys.attention(rope, query=both, key=both, value=both, fused="blocks", window=keys.window(None))
    mlp = keys.fused_mlp(keys.activation("hidden_act", "silu"))
    return keys.model([keys.layer(mixer, mlp)] * keys.num_hidden_layers)
