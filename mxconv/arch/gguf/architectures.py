"""The architectures of llama.cpp that packages are exported to, by `model_type`: one entry each.

What stands here is what the models of one family may differ in and llama.cpp's model of it may not have. Names of
tensors, the order of their rows and the keys follow from the description and this.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

from mxconv.arch.config import ModelConfig
from mxconv.arch.description import Attention, Temperature
from mxconv.arch.gguf.architecture import MLP, OUTPUT, QKV, Architecture, Scale, all_or_none, layers_with_windows
from mxconv.arch.mixture import ClampedGate

STANDARD = frozenset({"default", "linear", "yarn"})
EVERY = QKV | OUTPUT | MLP


def _gemma_scale(depth_of_27b: int) -> Scale:
    """Gemma's models of 27 B divide by another root: llama.cpp knows them by their depth."""

    def scale(config: ModelConfig, mixer: Attention) -> float:
        is_27b = config.num_hidden_layers == depth_of_27b
        return 1 / math.sqrt(config.hidden_size // mixer.num_heads if is_27b else mixer.head_dim)

    return scale


def _one(config: ModelConfig, mixer: Attention) -> float:
    return 1.0


LLAMA = Architecture("llama", pairs="neighbours", biases=EVERY, scalings=STANDARD | {"llama3", "longrope"})

GRANITE = Architecture(
    "granite",
    pairs="neighbours",
    biases=EVERY,
    scalings=STANDARD | {"llama3"},
    scale=None,
    numbers=frozenset({"embedding_multiplier", "residual_multiplier", "logit_divisor"}),
)
QWEN3_5 = Architecture(
    "qwen35",
    names={"ffn_norm": "post_attention_norm"},
    state="delta_net",
    is_gated=True,
    has_sections=True,
)

ARCHITECTURES: Mapping[str, Architecture] = {
    "arcee": Architecture("arcee", pairs="neighbours", activation="relu2", scalings=STANDARD | {"llama3"}),
    "cohere2": Architecture(
        "cohere2",
        pairs="neighbours",
        windows=True,
        rotates=lambda config, layer: config.windows[layer] is not None,
        numbers=frozenset({"logit_multiplier"}),
        head="embedding",
        fills_hidden=True,
    ),
    "exaone4": Architecture(
        "exaone4",
        scalings=STANDARD | {"llama3"},
        windows=True,
        num_layers_with_windows=64,
        rotates=layers_with_windows,
        fills_hidden=True,
    ),
    "gemma": Architecture("gemma", activation="gelu_tanh", grows_embedding=True, head="embedding"),
    "gemma2": Architecture(
        "gemma2",
        activation="gelu_tanh",
        windows=True,
        scale=_gemma_scale(46),
        numbers=frozenset({"attention_cap", "logit_cap"}),
        grows_embedding=True,
        head="embedding",
    ),
    "gemma3_text": Architecture(
        "gemma3",
        activation="gelu_tanh",
        windows=True,
        near_rope="own",
        scale=_gemma_scale(62),
        numbers=frozenset({"logit_cap"}),
        grows_embedding=True,
    ),
    "gemma4_text": Architecture(
        "gemma4",
        activation="gelu_tanh",
        biases=frozenset(),
        scalings=frozenset({"default", "linear", "proportional"}),
        needs_factors=True,
        windows=True,
        near_rope="own",
        scale=_one,
        numbers=frozenset({"logit_cap"}),
        grows_embedding=True,
    ),
    "glm4": Architecture("glm4", pairs="neighbours"),
    "glm4_moe": Architecture(
        "glm4moe", head="own", names={"ffn_norm": "post_attention_norm"}, experts="keyed", shares_expert="plain"
    ),
    "gpt2": Architecture("gpt2", activation="gelu_tanh", biases=EVERY, needs_biases=True, fills_hidden=True),
    "gpt_neox": Architecture(
        "gptneox", activation="gelu_tanh", biases=EVERY, needs_biases=True, head="own", fills_hidden=True
    ),
    "gpt_oss": Architecture(
        "gpt-oss",
        biases=QKV | OUTPUT,
        needs_biases=True,
        windows=True,
        head="own",
        has_sinks=True,
        names={"ffn_norm": "post_attention_norm"},
        experts="normalized",
        clamped=ClampedGate(1.702, 7.0),
        rounds_yarn=True,
        needs_experts=True,
        stacks="in_out",
    ),
    "granite": GRANITE,
    "granitemoe": replace(GRANITE, name="granitemoe", rotates=all_or_none, experts="normalized", needs_experts=True),
    "granitemoehybrid": replace(
        GRANITE,
        name="granitehybrid",
        rotates=all_or_none,
        state="mamba2",
        parts_gates=True,
        experts="normalized",
        shares_expert="plain",
    ),
    "hunyuan_v1_dense": Architecture("hunyuan-dense"),
    "lfm2": Architecture(
        "lfm2",
        biases=frozenset(),
        fills_hidden=True,
        names={"output_norm": "token_embd_norm"},
        state="short_convolution",
    ),
    "llama": LLAMA,
    "llama4_text": Architecture(
        "llama4",
        pairs="neighbours",
        biases=frozenset(),
        scalings=STANDARD | {"llama3"},
        is_chunked=True,
        temperature=Temperature(0.1, 8192, first=1),
        rotates=lambda config, layer: (layer + 1) % 4 != 0,
        experts="sigmoids",
        shares_expert="plain",
        needs_experts=True,
        stacks="in_out",
    ),
    "mamba2": Architecture("mamba2", state="mamba2"),
    "ministral3": Architecture(
        "mistral3",
        pairs="neighbours",
        biases=EVERY,
        scalings=STANDARD | {"llama3"},
        has_betas=True,
        has_temperature=True,
    ),
    "mistral": LLAMA,
    "mixtral": replace(LLAMA, experts="normalized"),
    "olmoe": Architecture("olmoe", head="own", fills_hidden=True, shares_keys=False, experts="plain"),
    "olmo2": Architecture("olmo2", head="own", fills_hidden=True),
    "olmo3": Architecture("olmo2", windows=True, near_rope="unscaled", head="own", fills_hidden=True),
    "phi3": Architecture("phi3", scalings=STANDARD | {"longrope"}, fills_hidden=True),
    "qwen2": Architecture("qwen2", fills_hidden=True),
    "qwen2_moe": Architecture("qwen2moe", experts="plain", shares_expert="gated"),
    "qwen3": Architecture("qwen3"),
    "qwen3_5_moe_text": replace(
        QWEN3_5, name="qwen35moe", experts="normalized", shares_expert="gated", needs_experts=True
    ),
    "qwen3_5_text": QWEN3_5,
    "qwen3_moe": Architecture("qwen3moe", experts="normalized"),
    "qwen3_next": replace(
        QWEN3_5,
        name="qwen3next",
        state="fused_delta_net",
        has_sections=False,
        experts="normalized",
        shares_expert="gated",
        needs_experts=True,
    ),
    "seed_oss": Architecture("seed_oss", names={"ffn_norm": "post_attention_norm"}),
    "smollm3": Architecture("smollm3", pairs="neighbours", rotates=lambda config, layer: (layer + 1) % 4 != 0),
    "starcoder2": Architecture(
        "starcoder2", activation="gelu_tanh", biases=EVERY, needs_biases=True, fills_hidden=True
    ),
}
