"""Where a model's tensors go in a GGUF file: names, rows and columns, and what becomes of values.

Names come from gguf's own map of Hugging Face names, except where that has none: experts (one tensor a layer for each
of an expert's matrices), MLPs beside them, and tensors of which one file has parts that the other does not.

RoPE rotates rows in pairs. Hugging Face checkpoints hold a head's first members of all pairs and then its second ones;
llama.cpp's `llama` models, and some others, hold the two members of a pair side by side:

    Hugging Face   row h * rotary_dim / 2 + j      member h of pair j
    GGUF           row 2 j + h

llama.cpp's DeltaNet of Qwen 3.5 has value heads in another order: it repeats the key heads as a whole, h1 h2 h1 h2,
where the checkpoint has all value heads of a key head side by side.

Source:
    `LlamaModel.permute`, qwen.py, mamba.py and lfm2.py of the conversion in llama.cpp, as in llama-cpp-python 0.3.36.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import lru_cache
from typing import TypeVar

import numpy as np
from gguf import MODEL_ARCH_NAMES, get_tensor_name_map
from numpy.typing import NDArray

from mxconv.arch.config import ModelConfig
from mxconv.arch.description import Attention, LayerParts
from mxconv.arch.elements import Experts, GatedDeltaNet, Linear, Mamba2, Mixture, Mlp, Norm, Recurrent, ShortConvolution
from mxconv.arrays import I64
from mxconv.checkpoint.stacked import ENDINGS
from mxconv.codecs.mxfp4 import BLOCK
from mxconv.gguf.architectures import Architecture

EMBEDDING, HEAD = "token_embd.weight", "output.weight"
PARAMETERS = (".weight", ".bias")
Scalar = TypeVar("Scalar", bound=np.generic)


@dataclass(frozen=True, eq=False)
class TensorPlace:
    """The place of one tensor of a checkpoint in a GGUF file, or of some of its rows."""

    name: str = ""  # GGUF's; empty until the name map gives it
    rows: I64 | None = None  # the checkpoint's rows that GGUF has, in its order; None is all as they are
    head_rows: int = 0  # rows keep their place but within heads of so many; 0: any row may come from anywhere
    columns: I64 | None = None  # as `rows`
    shape: tuple[int, ...] | None = None  # GGUF's, of values that follow each other alike in another shape
    offset: float = 0.0  # added to every value: what norms of some families leave out
    is_rate: bool = False  # whether each value x is here -exp(x): how fast a state decays
    is_transposed: bool = False  # whether the checkpoint has rows and columns exchanged
    is_vector: bool = False  # whether llama.cpp computes with it in F32, matrix or not
    expert: int | None = None  # whose matrix it is of a stack of that name; None is a tensor of its own

    @property
    def is_plain(self) -> bool:
        """Whether rows and columns are those of the checkpoint."""
        return self.rows is None and self.expert is None and not self.is_read_whole

    @property
    def is_read_whole(self) -> bool:
        """Whether any row here may come from any row there."""
        is_chosen = (self.rows is not None and not self.head_rows) or self.columns is not None
        return is_chosen or self.is_transposed or self.shape is not None

    def shape_of(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return GGUF's shape of a tensor of that shape in the checkpoint."""
        if self.shape is not None:
            return self.shape
        if self.is_transposed:
            return tuple(reversed(shape))
        rows = shape[0] if self.rows is None else len(self.rows)
        return rows, *(shape[1:] if self.columns is None else (len(self.columns),))

    def block_columns(self, num_columns: int) -> I64 | None:
        """Return the checkpoint's blocks of columns in GGUF's order; None where those are not whole."""
        if num_columns % BLOCK or self.is_transposed:
            return None
        if self.columns is None:
            return np.arange(num_columns // BLOCK)
        starts = self.columns[::BLOCK]
        whole = (starts[:, None] + np.arange(BLOCK)).reshape(-1)
        return starts // BLOCK if np.array_equal(whole, self.columns) and not (starts % BLOCK).any() else None

    def arranged(self, found: NDArray[Scalar], start: int, columns: I64 | None) -> NDArray[Scalar]:
        """Return rows of the checkpoint, from `start` on, as GGUF has them.

        Args:
            found: (rows, columns, ...), all rows where the tensor is read whole.
            start: the first one's number, that of a head.
            columns: which of the second axis, blocks or values; None is all.
        """
        if self.rows is not None:
            found = found[self.rows[start : start + len(found)] - start]
        if columns is not None:
            found = found[:, columns]
        if self.is_transposed:
            found = found.T
        return found if self.shape is None else found.reshape(self.shape)

    def rows_of(self, start: int, stop: int, num_rows: int) -> I64 | slice:
        """Return GGUF's rows at the checkpoint's rows [start, stop); -1 where those are in another part."""
        if self.rows is None:
            return slice(start, stop)
        found = np.full(num_rows, -1, np.int64)
        found[self.rows] = np.arange(len(self.rows))
        return found[start:stop]


Named = Iterator[tuple[str, TensorPlace]]


def places(config: ModelConfig, architecture: Architecture) -> dict[str, tuple[TensorPlace, ...]]:
    """The places of all tensors that the model may have, by the decoder's own names: a fused tensor has several."""
    kinds = {name: kind for kind, name in MODEL_ARCH_NAMES.items()}
    names = get_tensor_name_map(kinds[architecture.name], config.num_hidden_layers)
    found: dict[str, dict[str, TensorPlace]] = defaultdict(dict)

    def add(named: Iterable[tuple[str, TensorPlace]], prefix: str = "", block: str = "") -> None:
        for own, place in named:
            name = f"{block}{place.name}" if place.name else names.get_name(f"{prefix}{own}", PARAMETERS)
            if name is not None:
                found[f"{prefix}{own}"].setdefault(name, replace(place, name=name))

    add(_outside(config))
    for layer, parts in enumerate(config.layers):
        add(_inside(parts, architecture), f"{config.layer_prefix}.{layer}.", f"blk.{layer}.")
    return {name: tuple(of_tensor.values()) for name, of_tensor in found.items()}


def _outside(config: ModelConfig) -> Named:
    yield config.embedding, TensorPlace(EMBEDDING)
    if not config.tie_word_embeddings:
        yield f"{config.head}.weight", TensorPlace(HEAD)
    if config.positions is not None:
        yield config.positions, TensorPlace(is_vector=True)
    yield from _norm(config.final_norm)
    if (inputs := config.layer_inputs) is not None:
        yield inputs.table, TensorPlace()
        yield from _linear(inputs.projection)
        yield from _norm(inputs.norm)


def _inside(part: object, architecture: Architecture) -> Named:
    """The tensors of a layer, or of a part of one: of what is not listed here, those of its own parts."""
    match part:
        case Linear():
            yield from _linear(part)
        case Norm():
            yield from _norm(part)
        case Attention():
            yield from _attention(part, architecture)
        case Mlp():
            yield from _mlp(part, architecture)
        case Mixture():
            yield from _mixture(part, architecture)
        case Mamba2():
            yield from _mamba2(part)
        case GatedDeltaNet():
            yield from _fused_delta_net(part) if part.fused else _delta_net(part)
        case ShortConvolution():
            yield from _convolution(part)
            yield from _linear(part.inputs)
            yield from _linear(part.output)
        case _ if is_dataclass(part):
            for field in fields(part):
                yield from _inside(getattr(part, field.name), architecture)
            if isinstance(part, LayerParts) and part.scalar is not None:
                yield part.scalar, TensorPlace("layer_output_scale.weight")


def _linear(linear: Linear, module: str = "", rows: I64 | None = None, head_rows: int = 0) -> Named:
    for parameter in PARAMETERS[: 1 + linear.has_bias]:
        is_transposed = linear.is_transposed and parameter == ".weight"
        name = module and f"{module}{parameter}"
        yield f"{linear.name}{parameter}", TensorPlace(name, rows, head_rows, is_transposed=is_transposed)


def _norm(norm: Norm) -> Named:
    if norm.has_weight:
        yield f"{norm.name}.weight", TensorPlace(offset=norm.offset)
    if norm.has_bias:
        yield f"{norm.name}.bias", TensorPlace()


def _attention(mixer: Attention, architecture: Architecture) -> Named:
    def rotated(linear: Linear, num_heads: int) -> Named:
        rope = None if mixer.fused or architecture.pairs == "halves" else mixer.rope
        if rope is None or rope.is_interleaved:
            return _linear(linear)
        rows = paired_rows(num_heads, mixer.head_dim, rope.rotary_dim(mixer.head_dim))
        return _linear(linear, rows=rows, head_rows=mixer.head_dim)

    if mixer.fused == "heads":  # the queries of all heads come first, then keys, then values
        each = np.arange(3 * mixer.num_heads * mixer.head_dim).reshape(mixer.num_heads, 3, mixer.head_dim)
        yield from _linear(mixer.query, rows=each.swapaxes(0, 1).reshape(-1))
    else:
        yield from rotated(mixer.query, mixer.num_heads * (2 if mixer.is_gated else 1))
    if mixer.source is None and not mixer.fused:
        yield from rotated(mixer.key, mixer.num_key_value_heads)
        if not mixer.keys_are_values:
            yield from _linear(mixer.value)
    yield from _linear(mixer.output)
    if mixer.sinks is not None:
        yield mixer.sinks, TensorPlace("attn_sinks.weight")
    for norm in (mixer.query_norm, mixer.key_norm if mixer.source is None else None):
        if norm is not None:
            yield from _norm(norm)


@lru_cache(maxsize=8)  # layers share them
def paired_rows(num_heads: int, head_dim: int, rotary_dim: int) -> I64:
    """Return the checkpoint's rows of heads, of which the first `rotary_dim` rotate, with the rows of a pair side by
    side."""
    head = np.arange(head_dim)
    head[:rotary_dim] = head[:rotary_dim].reshape(2, -1).T.reshape(-1)
    return (np.arange(num_heads)[:, None] * head_dim + head).reshape(-1)


def _mlp(mlp: Mlp, architecture: Architecture, suffix: str = "") -> Named:
    yield from _linear(mlp.down, f"ffn_down{suffix}")
    if mlp.gate is not None and mlp.fused and architecture.parts_gates:
        yield from _linear(mlp.gate, f"ffn_gate{suffix}", rows=np.arange(mlp.size))
        yield from _linear(mlp.up, f"ffn_up{suffix}", rows=np.arange(mlp.size, 2 * mlp.size))
        return
    yield from _linear(mlp.up, f"ffn_up{suffix}")
    if mlp.gate is not None and not mlp.fused:
        yield from _linear(mlp.gate, f"ffn_gate{suffix}")


def _mixture(mixture: Mixture, architecture: Architecture) -> Named:
    """Experts that the checkpoint has one by one, stacked, or as MXFP4, their router and what is shared."""
    routing, experts = mixture.routing, mixture.experts
    yield f"{routing.router.name}.weight", TensorPlace(is_vector=True)
    if routing.router.has_bias:
        yield f"{routing.router.name}.bias", TensorPlace()
    if routing.correction is not None:
        yield routing.correction, TensorPlace("exp_probs_b.bias")
    stacks, rows = (experts.stacked[0], *experts.stacked), _stacked_rows(experts)
    for part, apart, stack, own in zip(("gate", "up", "down"), experts.apart or (None,) * 3, stacks, rows, strict=True):
        for expert in range(routing.num_experts if apart else 0):
            yield f"{apart}.weight".format(expert), TensorPlace(f"ffn_{part}_exps.weight", expert=expert)
        for name in (stack, stack + ENDINGS["codes"]):
            yield name, TensorPlace(f"ffn_{part}_exps.weight", rows=own)
        if experts.has_bias:
            yield f"{stack}_bias", TensorPlace(f"ffn_{part}_exps.bias", columns=own, is_vector=True)
    if mixture.shared_gate is not None:
        yield f"{mixture.shared_gate.name}.weight", TensorPlace(is_vector=True)
    if mixture.shared is not None:
        yield from _mlp(mixture.shared, architecture, "_shexp")


def _stacked_rows(experts: Experts) -> tuple[I64 | None, ...]:
    """Return the rows of gates, ups and downs in their stacks."""
    gates_and_ups = np.arange(2 * experts.size)
    if experts.is_interleaved:
        return gates_and_ups[::2], gates_and_ups[1::2], None
    return gates_and_ups[: experts.size], gates_and_ups[experts.size :], None


@lru_cache(maxsize=8)
def _value_heads(mixer: GatedDeltaNet, head_dim: int, first: int = 0) -> I64:
    """Return the rows of value heads, `head_dim` each, from row `first` on: the first of each key head, then the
    next."""
    heads = np.arange(mixer.num_value_heads).reshape(mixer.num_key_heads, -1).T.reshape(-1, 1)
    return (first + heads * head_dim + np.arange(head_dim)).reshape(-1)


def _delta_net(mixer: GatedDeltaNet) -> Named:
    keys, heads = 2 * mixer.num_keys, _value_heads(mixer, 1)
    channels = np.concatenate([np.arange(keys), _value_heads(mixer, mixer.value_dim, keys)])
    values = _value_heads(mixer, mixer.value_dim)
    yield from _linear(mixer.queries_keys_values, rows=channels)
    yield from _linear(mixer.gate, rows=values)
    yield from _linear(mixer.beta, rows=heads)
    yield from _linear(mixer.decay, rows=heads)
    yield from _convolution(mixer, channels)
    yield mixer.decay_bias, TensorPlace("ssm_dt.bias", heads)
    yield mixer.decay_log, TensorPlace("ssm_a", heads, is_rate=True)
    yield from _norm(mixer.norm)
    yield f"{mixer.output.name}.weight", TensorPlace(columns=values)


def _fused_delta_net(mixer: GatedDeltaNet) -> Named:
    """Tensors that hold key head by key head: its query, key, values and gates."""
    keys, values = mixer.key_dim, mixer.num_values // mixer.num_key_heads
    rows = np.arange(mixer.num_key_heads * 2 * (keys + values)).reshape(mixer.num_key_heads, -1)
    *mixed, gates = (part.reshape(-1) for part in np.split(rows, (keys, 2 * keys, 2 * keys + values), axis=1))
    yield from _linear(mixer.queries_keys_values, "attn_qkv", np.concatenate(mixed))
    yield from _linear(mixer.gate, "attn_gate", gates)
    yield from _linear(mixer.beta)
    yield from _convolution(mixer)
    yield mixer.decay_bias, TensorPlace("ssm_dt.bias")
    yield mixer.decay_log, TensorPlace("ssm_a", is_rate=True)
    yield from _norm(mixer.norm)
    yield from _linear(mixer.output)


def _mamba2(mixer: Mamba2) -> Named:
    column = mixer.num_heads, 1
    yield from _linear(mixer.inputs)
    yield from _convolution(mixer)
    yield mixer.step_bias, TensorPlace("ssm_dt.bias")
    yield mixer.decay_log, TensorPlace("ssm_a", shape=column, is_rate=True)
    yield mixer.skip, TensorPlace("ssm_d", shape=column)
    groups = mixer.norm_groups, mixer.size // mixer.norm_groups
    yield f"{mixer.norm.name}.weight", TensorPlace(shape=groups, offset=mixer.norm.offset)
    yield from _linear(mixer.output)


def _convolution(mixer: Recurrent, channels: I64 | None = None) -> Named:
    shape = mixer.state.num_channels, mixer.convolution.kernel_size
    yield f"{mixer.convolution.name}.weight", TensorPlace("", channels, shape=shape, is_vector=True)
    if mixer.convolution.has_bias:
        yield f"{mixer.convolution.name}.bias", TensorPlace("", channels)
