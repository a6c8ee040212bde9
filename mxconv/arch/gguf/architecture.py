"""What llama.cpp's model of an architecture computes, as far as models of one family may differ in it."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from mxconv.arch.config import ModelConfig
from mxconv.arch.description import Attention, Temperature
from mxconv.arch.elements import Activation
from mxconv.arch.mixture import ClampedGate
from mxconv.checkpoint.stacked import Axes

Scale = Callable[[ModelConfig, Attention], float]
Rotates = Callable[[ModelConfig, int], bool]
State = Literal["delta_net", "fused_delta_net", "mamba2", "short_convolution"]

QKV = frozenset({"attn_q", "attn_k", "attn_v", "attn_qkv"})
OUTPUT = frozenset({"attn_output"})
MLP = frozenset({"ffn_gate", "ffn_up", "ffn_down"})


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

    Args:
        name: in `general.architecture`, and before its keys.
        pairs: which values of a head it rotates together: neighbours, or values half of those that rotate apart.
        activation: of its MLP.
        biases: the modules of a layer that may have one, besides norms.
        needs_biases: whether all of them must.
        scalings: the kinds of scaled rotations that it has; `llama3`, `longrope` and `proportional` are tensors.
        needs_factors: whether it asks for the tensor of factors in any case.
        has_betas: whether it reads YaRN's two, or has 32 and 1.
        windows: whether layers see windows; without them all see everything, whatever the model was trained with.
        near_rope: how layers with a window rotate: as the others, as they without their scaling, or by a base of their
            own without scaling.
        rotates: which layers rotate.
        scale: of scores; None is read from a key.
        numbers: the numbers of a description that it reads from keys, see `keys.py`.
        grows_embedding: whether embeddings are multiplied by the root of their size.
        head: whether the output head must be a tensor of its own, may be, or always is the embedding.
        fills_hidden: whether its heads must make hidden_size.
        shares_keys: whether several heads may have one key.
        has_temperature: whether queries may grow with their position.
        names: modules of a layer that it calls something else than the others do.
        num_layers_with_windows: the only depth at which it has windows; None is any.
        experts: how its experts' scores count, as they are or divided by their sum; "keyed" is DeepSeek's routing,
            of which keys say more, behind layers without experts; "sigmoids" are Llama 4's, which multiply what
            experts take in; None has no experts.
        shares_expert: whether every row goes through one more, "gated" by a number of its own or not; None has none.
        state: the kind of its mixers that have a state; every layer that does not attend must be one.
        is_gated: whether each query stands beside a gate of what its head gives.
        parts_gates: whether an MLP's gates are a tensor of their own, also where the checkpoint has them in one.
        has_sections: whether pairs rotate by three positions in turn, of which a text's are equal.
        is_chunked: whether windows stand side by side, of its own length whatever a file says.
        temperature: of the layers that do not rotate, its own whatever a file says.
        has_sinks: whether each head of queries has one.
        clamped: what is made of gates and ups of experts, its own; biases of experts and routers go with it.
        rounds_yarn: whether it rounds where YaRN begins and ends, which the model does not; a note says so.
        needs_experts: whether there must be some.
        stacks: of experts that the checkpoint has stacked, which axes a matrix has there.

    Source:
        src/models/*.cpp and llama-model.cpp of the llama.cpp in llama-cpp-python 0.3.36.
    """

    name: str
    pairs: Literal["halves", "neighbours"] = "halves"
    activation: Activation = "silu"
    biases: frozenset[str] = QKV
    needs_biases: bool = False
    scalings: frozenset[str] = frozenset({"default", "linear", "yarn"})
    needs_factors: bool = False
    has_betas: bool = False
    windows: bool = False
    near_rope: Literal["same", "unscaled", "own"] = "same"
    rotates: Rotates = every_layer
    scale: Scale | None = by_head
    numbers: frozenset[str] = frozenset()
    grows_embedding: bool = False
    head: Literal["own", "optional", "embedding"] = "optional"
    fills_hidden: bool = False
    shares_keys: bool = True
    has_temperature: bool = False
    names: Mapping[str, str] = field(default_factory=dict)
    num_layers_with_windows: int | None = None
    experts: Literal["plain", "normalized", "keyed", "sigmoids"] | None = None
    shares_expert: Literal["gated", "plain"] | None = None
    state: State | None = None
    is_gated: bool = False
    parts_gates: bool = False
    has_sections: bool = False
    is_chunked: bool = False
    temperature: Temperature | None = None
    has_sinks: bool = False
    clamped: ClampedGate | None = None
    rounds_yarn: bool = False
    needs_experts: bool = False
    stacks: Axes = "out_in"
