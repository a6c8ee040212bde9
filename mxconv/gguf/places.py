"""The places of a model's tensors in a GGUF file: names, rows and columns, and what becomes of values.

Names come from gguf's own map of Hugging Face names, except where that has none: experts (one tensor a layer for each
of an expert's matrices), MLPs beside them, and tensors of which one file has parts that the other does not.

llama.cpp's DeltaNet of Qwen 3.5 has value heads in another order: it repeats the key heads as a whole, h1 h2 h1 h2,
where the checkpoint has all value heads of a key head side by side.

Source:
    qwen.py, mamba.py and lfm2.py of the conversion in llama.cpp, as in llama-cpp-python 0.3.36.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import pairwise
from typing import Literal

from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

from mxconv.arch.config import ModelConfig
from mxconv.arch.description import Attention, LayerParts
from mxconv.arch.elements import Linear, Mlp, Norm
from mxconv.arch.mixture import Experts, Mixture
from mxconv.arch.state_mixers import GatedDeltaNet, Mamba2, Recurrent, ShortConvolution
from mxconv.checkpoint.carried import ENDINGS
from mxconv.gguf.architectures import Architecture

EMBEDDING, HEAD = "token_embd.weight", "output.weight"
PARAMETERS = (".weight", ".bias")
Ranges = tuple[range, ...]  # of rows or columns, in this order


@dataclass(frozen=True)
class RowOrder:
    """Another order of a tensor's rows."""

    # "pairs" puts the two rows that rotate together side by side, in whole heads of `head_dim`; "blocks" puts the
    # queries of all heads first, then keys, then values, where each head had its three
    kind: Literal["pairs", "blocks"]
    head_dim: int  # rows of a head
    rotary_dim: int  # of them, the ones that rotate, from the first on


@dataclass(frozen=True)
class TensorPlace:
    """The place of one tensor of a checkpoint in a GGUF file, or of some of its rows."""

    name: str = ""  # GGUF's; empty until the name map gives it
    order: RowOrder | None = None  # None is as they are
    rows: Ranges | None = None  # of the checkpoint's rows those that stand here; None is all. Of a stack, each expert's
    columns: Ranges | None = None  # likewise
    # of a vector, or of what is as small, where GGUF has another; the values follow each other alike
    shape: tuple[int, ...] | None = None
    own_shape: tuple[int, ...] | None = None  # of the same in the checkpoint
    offset: float = 0.0  # added to every value: what norms of some families leave out
    is_rate: bool = False  # whether each value x is here -exp(x): how fast a state decays
    is_transposed: bool = False  # whether the checkpoint has rows and columns exchanged
    is_vector: bool = False  # whether llama.cpp computes with it in F32, matrix or not
    expert: int | None = None  # whose matrix it is of a stack of that name; None is a tensor of its own

    @property
    def is_plain(self) -> bool:
        """Whether rows and columns are those of the checkpoint."""
        return self.order is None and self.expert is None and not self.is_read_whole

    @property
    def is_read_whole(self) -> bool:
        """Whether any row here may come from any row there."""
        is_in_blocks = self.order is not None and self.order.kind == "blocks"
        is_chosen = self.rows is not None or self.columns is not None
        return is_in_blocks or is_chosen or self.is_transposed or self.shape is not None


Named = Iterator[tuple[str, TensorPlace]]


def places(config: ModelConfig, architecture: Architecture) -> dict[str, tuple[TensorPlace, ...]]:
    """The places of all tensors that the model may have, by the decoder's own names: a fused tensor has several."""
    kinds = {name: kind for kind, name in MODEL_ARCH_NAMES.items()}
    names = get_tensor_name_map(kinds[architecture.name], config.num_hidden_layers)
    found: dict[str, list[TensorPlace]] = defaultdict(list)

    def add(named: Iterable[tuple[str, TensorPlace]], prefix: str = "", block: str = "") -> None:
        for own, place in named:
            name = f"{block}{place.name}" if place.name else names.get_name(f"{prefix}{own}", PARAMETERS)
            if name is not None and (placed := replace(place, name=name)) not in found[f"{prefix}{own}"]:
                found[f"{prefix}{own}"].append(placed)

    add(_outside(config))
    for layer, parts in enumerate(config.layers):
        add(_inside(parts, architecture), f"{config.layer_prefix}.{layer}.", f"blk.{layer}.")
    return {name: tuple(of_tensor) for name, of_tensor in found.items()}


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


def _linear(linear: Linear, module: str = "", order: RowOrder | None = None, rows: Ranges | None = None) -> Named:
    for parameter in PARAMETERS[: 1 + linear.has_bias]:
        is_transposed = linear.is_transposed and parameter == ".weight"
        yield (
            f"{linear.name}{parameter}",
            TensorPlace(module and f"{module}{parameter}", order, rows, is_transposed=is_transposed),
        )


def _norm(norm: Norm) -> Named:
    if norm.has_weight:
        yield f"{norm.name}.weight", TensorPlace(offset=norm.offset)
    if norm.has_bias:
        yield f"{norm.name}.bias", TensorPlace()


def _attention(mixer: Attention, architecture: Architecture) -> Named:
    order, rope = None, None if mixer.fused or architecture.pairs == "halves" else mixer.rope
    if mixer.fused == "heads":
        order = RowOrder("blocks", mixer.head_dim, 0)
    elif rope is not None and not rope.is_interleaved:
        order = RowOrder("pairs", mixer.head_dim, rope.rotary_dim(mixer.head_dim))
    yield from _linear(mixer.query, order=order)
    if mixer.source is None and not mixer.fused:
        yield from _linear(mixer.key, order=order)
        if not mixer.keys_are_values:
            yield from _linear(mixer.value)
    yield from _linear(mixer.output)
    if mixer.sinks is not None:
        yield mixer.sinks, TensorPlace("attn_sinks.weight")
    for norm in (mixer.query_norm, mixer.key_norm if mixer.source is None else None):
        if norm is not None:
            yield from _norm(norm)


def _mlp(mlp: Mlp, architecture: Architecture, suffix: str = "") -> Named:
    yield from _linear(mlp.down, f"ffn_down{suffix}")
    if mlp.gate is not None and mlp.fused and architecture.parts_gates:
        yield from _linear(mlp.gate, f"ffn_gate{suffix}", rows=(range(mlp.size),))
        yield from _linear(mlp.up, f"ffn_up{suffix}", rows=(range(mlp.size, 2 * mlp.size),))
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


def _stacked_rows(experts: Experts) -> tuple[Ranges | None, ...]:
    """The rows of gates, ups and downs in their stacks."""
    size = experts.size
    if experts.is_interleaved:
        return (range(0, 2 * size, 2),), (range(1, 2 * size, 2),), None
    return (range(size),), (range(size, 2 * size),), None


def turned_heads(mixer: GatedDeltaNet, head_dim: int, first: int = 0) -> Ranges:
    """The rows of value heads, `head_dim` each, from row `first` on: the first of each key head, then the next."""
    group = mixer.num_value_heads // mixer.num_key_heads
    heads = (head * group + each for each in range(group) for head in range(mixer.num_key_heads))
    return tuple(range(first + head * head_dim, first + (head + 1) * head_dim) for head in heads)


def _delta_net(mixer: GatedDeltaNet) -> Named:
    keys, values, heads = 2 * mixer.num_keys, mixer.value_dim, turned_heads(mixer, 1)
    channels = (range(keys), *turned_heads(mixer, values, keys))
    yield from _linear(mixer.queries_keys_values, rows=channels)
    yield from _linear(mixer.gate, rows=turned_heads(mixer, values))
    yield from _linear(mixer.beta, rows=heads)
    yield from _linear(mixer.decay, rows=heads)
    yield from _convolution(mixer, channels)
    yield mixer.decay_bias, TensorPlace("ssm_dt.bias", rows=heads)
    yield mixer.decay_log, TensorPlace("ssm_a", rows=heads, is_rate=True)
    yield from _norm(mixer.norm)
    yield f"{mixer.output.name}.weight", TensorPlace(columns=turned_heads(mixer, values))


def _fused_delta_net(mixer: GatedDeltaNet) -> Named:
    """Tensors that hold key head by key head: its query, key, values and gates."""
    keys, values = mixer.key_dim, mixer.num_values // mixer.num_key_heads
    starts = (0, keys, 2 * keys, 2 * keys + values, 2 * (keys + values))
    parts = [
        tuple(range(head * starts[-1] + start, head * starts[-1] + stop) for head in range(mixer.num_key_heads))
        for start, stop in pairwise(starts)
    ]
    yield from _linear(mixer.queries_keys_values, "attn_qkv", rows=(*parts[0], *parts[1], *parts[2]))
    yield from _linear(mixer.gate, "attn_gate", rows=parts[3])
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
    yield mixer.decay_log, TensorPlace("ssm_a", shape=column, own_shape=column[:1], is_rate=True)
    yield mixer.skip, TensorPlace("ssm_d", shape=column, own_shape=column[:1])
    groups = mixer.norm_groups, mixer.size // mixer.norm_groups
    norm = TensorPlace(shape=groups, own_shape=(mixer.size,), offset=mixer.norm.offset)
    yield f"{mixer.norm.name}.weight", norm
    yield from _linear(mixer.output)


def _convolution(mixer: Recurrent, channels: Ranges | None = None) -> Named:
    convolution, num_channels = mixer.convolution, mixer.state.num_channels
    shape, own_shape = (num_channels, convolution.kernel_size), (num_channels, 1, convolution.kernel_size)
    place = TensorPlace(rows=channels, shape=shape, own_shape=own_shape, is_vector=True)
    yield f"{convolution.name}.weight", place
    if convolution.has_bias:
        yield f"{convolution.name}.bias", TensorPlace(rows=channels)
