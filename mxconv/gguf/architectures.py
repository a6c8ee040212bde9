"""The architectures of llama.cpp that packages are exported to and GGUF files are read of, by `model_type`.

An entry holds what models of one family may differ in and llama.cpp's model of it may not have. Names of tensors, the
order of their rows and the keys follow from the description and this.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from mxconv.arch.config import ModelConfig
from mxconv.arch.description import Attention, Temperature
from mxconv.arch.elements import Activation, ClampedGate, Mixture, Recurrent
from mxconv.checkpoint.stacked import Axes

Scale = Callable[[ModelConfig, Attention], float]
Rotates = Callable[[ModelConfig, int], bool]
State = Literal["delta_net", "fused_delta_net", "mamba2", "short_convolution"]

QKV = frozenset({"attn_q", "attn_k", "attn_v", "attn_qkv"})
OUTPUT = frozenset({"attn_output"})
MLP = frozenset({"ffn_gate", "ffn_up", "ffn_down"})
EVERY = QKV | OUTPUT | MLP
STANDARD = frozenset({"default", "linear", "yarn"})


def attentions(config: ModelConfig) -> tuple[Attention, ...]:
    """Attention over heads, in the order of layers; `check_exportable` refuses other kinds before."""
    return tuple(layer.mixer for layer in config.layers if isinstance(layer.mixer, Attention))


def states(config: ModelConfig) -> tuple[Recurrent, ...]:
    """Mixers with a state, in the order of layers."""
    return tuple(layer.mixer for layer in config.layers if isinstance(layer.mixer, Recurrent))


def first_mixture(config: ModelConfig) -> Mixture | None:
    """The experts of the first layer that has some."""
    return next((layer.mlp for layer in config.layers if isinstance(layer.mlp, Mixture)), None)


def by_head(config: ModelConfig, mixer: Attention) -> float:
    """The usual scale of scores."""
    return 1 / math.sqrt(mixer.head_dim)


def every_layer(config: ModelConfig, layer: int) -> bool:
    """Which layers rotate: all."""
    return True


def all_or_none(config: ModelConfig, layer: int) -> bool:
    """Which layers rotate: all that attend, or none does."""
    return any(mixer.rope is not None for mixer in config.attentions)


def layers_with_windows(config: ModelConfig, layer: int) -> bool:
    """Which layers rotate: those that see a window, or all where none does."""
    return config.windows[layer] is not None or not any(config.windows)


@dataclass(frozen=True)
class Architecture:
    """One architecture of llama.cpp.

    Source:
        src/models/*.cpp and llama-model.cpp of the llama.cpp in llama-cpp-python 0.3.36.
    """

    name: str  # in `general.architecture`, and before its keys
    pairs: Literal["halves", "neighbours"] = "halves"  # values of a head that it rotates together
    activation: Activation = "silu"  # of its MLP
    biases: frozenset[str] = QKV  # the modules of a layer that may have one, besides norms
    needs_biases: bool = False  # whether all of them must
    scalings: frozenset[str] = STANDARD  # of rotations; `llama3`, `longrope` and `proportional` are tensors
    needs_factors: bool = False  # whether it asks for the tensor of factors in any case
    has_betas: bool = False  # whether it reads YaRN's two, or has 32 and 1
    windows: bool = False  # whether layers see windows, or everything whatever the model was trained with
    # how layers with a window rotate: as the others, so without scaling, or by a base of their own without scaling
    near_rope: Literal["same", "unscaled", "own"] = "same"
    rotates: Rotates = every_layer  # which layers rotate
    scale: Scale | None = by_head  # of scores; None is read from a key
    numbers: frozenset[str] = frozenset()  # the numbers of a description that it reads from keys, see `written_keys.py`
    grows_embedding: bool = False  # whether embeddings are multiplied by the root of their size
    head: Literal["own", "optional", "embedding"] = "optional"  # must be a tensor of its own, may be, or never is
    fills_hidden: bool = False  # whether its heads must make hidden_size
    shares_keys: bool = True  # whether several heads may have one key
    has_temperature: bool = False  # whether queries may grow with their position
    num_layers_with_windows: int | None = None  # the only depth at which it has windows; None is any
    # how its experts' scores count, as they are or divided by their sum; "keyed" is DeepSeek's routing, of which keys
    # say more, after layers without experts; "sigmoids" are Llama 4's, which multiply what experts take in; None has no
    # experts
    experts: Literal["plain", "normalized", "keyed", "sigmoids"] | None = None
    shares_expert: Literal["gated", "plain"] | None = None  # one more for every row, gated by a number or not
    state: State | None = None  # the kind of its mixers that have a state; every layer that does not attend must be one
    is_gated: bool = False  # whether each query has a gate beside it, of what its head gives
    parts_gates: bool = False  # whether an MLP's gates are a tensor of their own, whatever the checkpoint has
    has_sections: bool = False  # whether pairs rotate by three positions in turn, of which a text's are equal
    is_chunked: bool = False  # whether windows lie side by side, of its own length whatever a file says
    temperature: Temperature | None = None  # of the layers that do not rotate, its own whatever a file says
    has_sinks: bool = False  # whether each head of queries has one
    clamped: ClampedGate | None = None  # of experts, its own; biases of experts and routers go with it
    rounds_yarn: bool = False  # whether it rounds where YaRN begins and ends, which the model does not; a note says so
    needs_experts: bool = False  # whether there must be some
    stacks: Axes = "out_in"  # of experts that the checkpoint has stacked, which axes a matrix has there


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
QWEN3_5 = Architecture("qwen35", state="delta_net", is_gated=True, has_sections=True)

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
    "glm4_moe": Architecture("glm4moe", head="own", experts="keyed", shares_expert="plain"),
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
    "lfm2": Architecture("lfm2", biases=frozenset(), fills_hidden=True, state="short_convolution"),
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
    "seed_oss": Architecture("seed_oss"),
    "smollm3": Architecture("smollm3", pairs="neighbours", rotates=lambda config, layer: (layer + 1) % 4 != 0),
    "starcoder2": Architecture(
        "starcoder2", activation="gelu_tanh", biases=EVERY, needs_biases=True, fills_hidden=True
    ),
}
