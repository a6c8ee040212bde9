"""The parts that today's decoders are made of, as data: what a family's file fills in and both decoders read.

A layer is a mixer of tokens and an MLP, each with norms, added to their input. Every part says where its tensors lie,
by names that begin behind the layer's own prefix. No arrays here, so that a cost needs no NumPy.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mxconv.arch.elements import Activation as Activation
from mxconv.arch.elements import Linear as Linear
from mxconv.arch.elements import Norm as Norm
from mxconv.arch.latent import LatentAttention
from mxconv.arch.rope_parameters import RopeParameters
from mxconv.arch.state_mixers import Recurrent

if TYPE_CHECKING:  # which is made of the parts below
    from mxconv.arch.mixture import Mixture


@dataclass(frozen=True)
class Temperature:
    """Queries grow with their position p: by 1 + beta * log(1 + floor((p + first) / length)).

    Source:
        The Llama 4 release of Meta (attention temperature), as transformers' ministral3 computes it.
    """

    beta: float
    length: int
    first: int = 0


@dataclass(frozen=True)
class Attention:
    """Causal attention of grouped heads.

    Args:
        num_heads: of queries; heads h * group .. (h + 1) * group - 1 share key-value head h.
        query: with `key` and `value`; all three name one tensor where they are fused.
        fused: how one tensor holds the three: as "blocks", all queries, then keys, then values, or by "heads", a
            query, a key and a value a head. None where each has its own.
        scale: of a query times a key.
        window: how many positions a token sees, itself included; None is all.
        is_chunked: whether windows stand side by side: a token sees what is from the last multiple of `window` on.
        rope: None rotates nothing.
        query_norm: None is none, as of `key_norm` and `value_norm`.
        norm_span: whether queries and keys are normed head by head, or all heads of a row together.
        norms_rotated: whether they are normed behind their rotation.
        logit_cap: c turns a score s into c * tanh(s / c).
        source: the layer whose keys and values are read, this one having none of its own.
        keys_are_values: whether values are the keys before their norm and rotation.
        sinks: a tensor (num_heads,) of scores that take a share of attention and give nothing; None is none.
        clip: queries and keys behind their norms, and values, are kept within this; None keeps all.
        is_gated: whether the query's tensor has a gate beside each query, (2 * head_dim) rows a head; its sigmoid
            multiplies what the head gives.
    """

    num_heads: int
    num_key_value_heads: int
    head_dim: int
    query: Linear
    key: Linear
    value: Linear
    output: Linear
    scale: float
    rope: RopeParameters | None
    window: int | None = None
    fused: Literal["blocks", "heads"] | None = None
    query_norm: Norm | None = None
    key_norm: Norm | None = None
    value_norm: Norm | None = None
    norm_span: Literal["head", "row"] = "head"
    norms_rotated: bool = False
    logit_cap: float | None = None
    temperature: Temperature | None = None
    source: int | None = None
    keys_are_values: bool = False
    is_chunked: bool = False
    sinks: str | None = None
    clip: float | None = None
    is_gated: bool = False


Attending = Attention | LatentAttention
Mixer = Attending | Recurrent


@dataclass(frozen=True)
class Mlp:
    """Two matrices with an activation between them; with a gate, a third whose activation multiplies the first's rows.

    Args:
        gate: None for none.
        fused: whether one tensor, which `gate` and `up` both name, holds the gate's rows and then the others.
    """

    size: int
    activation: Activation
    up: Linear
    down: Linear
    gate: Linear | None = None
    fused: bool = False


@dataclass(frozen=True)
class LayerInput:
    """An embedding of the layer's own, gated by the row and added to it behind the MLP.

    Args:
        size: of the embedding.
        gate: (size, hidden_size), behind which is an activation.
        projection: (hidden_size, size).
        norm: of what is added.
    """

    size: int
    activation: Activation
    gate: Linear
    projection: Linear
    norm: Norm


@dataclass(frozen=True)
class LayerParts:
    """A layer. Each norm may be absent: before its part, or behind it and before it is added.

    Args:
        mlp: None is a layer that is a mixer alone.
        is_parallel: whether the MLP takes in what the mixer does, or what the mixer made of it.
        residual_multiplier: of what is added.
        scalar: the tensor of one number by which the row is multiplied at last; None is none.
    """

    mixer: Mixer
    mlp: "Mlp | Mixture | None"
    before_mixer: Norm | None = None
    after_mixer: Norm | None = None
    before_mlp: Norm | None = None
    after_mlp: Norm | None = None
    is_parallel: bool = False
    residual_multiplier: float = 1.0
    layer_input: LayerInput | None = None
    scalar: str | None = None


@dataclass(frozen=True)
class LayerInputs:
    """Where the layers' own embeddings come from: a table of the tokens, and the embedding that all layers take.

    Args:
        size: of one layer's.
        table: the tensor (vocabulary, num_layers * size).
        table_multiplier: of its rows.
        projection: (num_layers * size, hidden_size), of the row's embedding.
        projection_multiplier: of what it gives.
        norm: of each layer's part of that.
        multiplier: of the sum of the two.
    """

    size: int
    table: str
    table_multiplier: float
    projection: Linear
    projection_multiplier: float
    norm: Norm
    multiplier: float
