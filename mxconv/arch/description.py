"""The parts that today's decoders are made of, as data: what a family's file fills in and both decoders read.

A layer is a mixer of tokens and an MLP, each with norms, added to their input. Every part says where its tensors lie,
by names that follow the layer's own prefix. No arrays here, so that a cost needs no NumPy.
"""

from dataclasses import dataclass
from typing import Literal

from mxconv.arch.elements import Activation, Linear, Mixture, Mlp, Norm, Recurrent
from mxconv.arch.rope_parameters import RopeParameters


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
    """Causal attention of grouped heads."""

    num_heads: int  # of queries; heads h * group .. (h + 1) * group - 1 share key-value head h
    num_key_value_heads: int
    head_dim: int
    query: Linear  # as `key` and `value`; all three name one tensor where they are fused
    key: Linear
    value: Linear
    output: Linear
    scale: float  # of a query times a key
    rope: RopeParameters | None  # None rotates nothing
    window: int | None = None  # how many positions a token sees, itself included; None is all
    # in one tensor: "blocks" are all queries, then keys, then values; "heads" a query, a key and a value a head
    fused: Literal["blocks", "heads"] | None = None
    query_norm: Norm | None = None  # None is none, as of `key_norm` and `value_norm`
    key_norm: Norm | None = None
    value_norm: Norm | None = None
    norm_span: Literal["head", "row"] = "head"  # of queries and keys, what is normed together
    norms_rotated: bool = False  # whether they are normed after their rotation
    logit_cap: float | None = None  # c turns a score s into c * tanh(s / c)
    temperature: Temperature | None = None
    source: int | None = None  # the layer whose keys and values are read, this one having none of its own
    keys_are_values: bool = False  # whether values are the keys before their norm and rotation
    is_chunked: bool = False  # whether windows lie side by side: a token sees from the last multiple of `window` on
    sinks: str | None = None  # a tensor (num_heads,) of scores that take a share of attention and give nothing
    clip: float | None = None  # queries and keys after their norms, and values, are kept within this; None keeps all
    # whether the query's tensor has a gate beside each query, (2 * head_dim) rows a head; its sigmoid multiplies what
    # the head gives
    is_gated: bool = False


@dataclass(frozen=True)
class LatentAttention:
    """Latent attention (MLA): a cache holds one short vector a position, from which every head takes its own.

    One key for all heads rotates.

    Source:
        DeepSeek-V2, arXiv 2405.04434, section 2.1.
    """

    num_heads: int  # of queries; each has as many keys and values
    latent_size: int  # of what a cache holds of a position besides the key that rotates
    plain_size: int  # numbers of a query that do not rotate
    rotated_size: int  # and of those that do
    value_size: int  # of what a head gives
    query_rank: int  # numbers that `query` takes in; the hidden size without `query_down`
    query_down: Linear | None  # to fewer numbers, (query_rank, hidden_size), before `query_norm`; None for none
    query_norm: Norm | None
    query: Linear  # (num_heads * (plain_size + rotated_size), query_rank)
    down: Linear  # latent vector and rotated key, (latent_size + rotated_size, hidden_size)
    latent_norm: Norm  # of the former
    up: Linear  # a head's keys, then its values, (num_heads * (plain_size + value_size), latent_size)
    output: Linear
    scale: float  # of a query times a key
    rope: RopeParameters
    window: int | None = None
    source: int | None = None  # every layer has latent vectors of its own

    @property
    def num_key_value_heads(self) -> int:
        """Heads of a cache: all heads read one."""
        return 1

    @property
    def head_dim(self) -> int:
        """Numbers that a cache holds of a position."""
        return self.latent_size + self.rotated_size


Attending = Attention | LatentAttention
Mixer = Attending | Recurrent


@dataclass(frozen=True)
class LayerInput:
    """An embedding of the layer's own, gated by the row and added to it after the MLP."""

    size: int  # of the embedding
    activation: Activation
    gate: Linear  # (size, hidden_size), before an activation
    projection: Linear  # (hidden_size, size)
    norm: Norm  # of what is added


@dataclass(frozen=True)
class LayerParts:
    """A layer. Each norm may be absent: before its part, or after it and before it is added."""

    mixer: Mixer
    mlp: Mlp | Mixture | None  # None is a layer that is a mixer alone
    before_mixer: Norm | None = None
    after_mixer: Norm | None = None
    before_mlp: Norm | None = None
    after_mlp: Norm | None = None
    is_parallel: bool = False  # whether the MLP takes in what the mixer does, or what the mixer made of it
    residual_multiplier: float = 1.0  # of what is added
    layer_input: LayerInput | None = None
    scalar: str | None = None  # the tensor of one number by which the row is multiplied at last; None is none


@dataclass(frozen=True)
class LayerInputs:
    """The source of the layers' own embeddings: a table of the tokens, and the embedding that all layers take."""

    size: int  # of one layer's
    table: str  # the tensor (vocabulary, num_layers * size)
    table_multiplier: float  # of its rows
    projection: Linear  # (num_layers * size, hidden_size), of the row's embedding
    projection_multiplier: float  # of what it gives
    norm: Norm  # of each layer's part of that
    multiplier: float  # of the sum of the two


@dataclass(frozen=True)
class Mtp:
    """A layer beside the model's own that was trained with them to predict one token further.

    A token's embedding and the model's state of the token before it, after the final norm, are normed each and put
    side by side; a projection and a layer of the family's own kind over all such pairs of a text, and a last norm, make
    the state after the token. Embedding and output head are the model's.

    Every name here is of the whole tensor or module.

    Source:
        DeepSeek-V3 technical report (arXiv 2412.19437), section 2.2, and README_WEIGHTS.md of its release: embedding
        and head are shared. That the state is read after the final norm, and the module's own after its last norm
        when it is chained: MtpModel of transformers 5.23, deepseek_nextn.py of SGLang, vLLM since its pull request
        45895, llama.cpp for Qwen since its pull request 24025.
    """

    modules: tuple[str, ...]  # how the names of each module's tensors begin; the first one runs, chained with itself
    layer: LayerParts
    layer_prefix: str
    embedding_norm: Norm
    state_norm: Norm
    projection: Linear  # (hidden_size, 2 * hidden_size)
    final_norm: Norm  # after the layer
    state_first: bool = False  # whether the projection takes in the state before the embedding
    copies: tuple[str, ...] = ()  # ends of names of tensors that repeat the embedding or head, and are not read

    def has(self, tensor: str) -> bool:
        """Whether a tensor is of one of the modules."""
        return tensor.startswith(self.modules)

    def reads(self, tensor: str) -> bool:
        """Whether the module that runs uses a tensor."""
        return tensor.startswith(self.modules[0]) and not tensor.endswith(self.copies)
