"""Where each tensor of a model stands in a GGUF file, read off its description: name, order of rows, what is added."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from mxconv.interop.gguf.architecture import Architecture
from mxconv.interop.gguf.parts import mixer_of, mlp_of
from mxconv.model.config import ModelConfig
from mxconv.model.description import Attention, LayerParts, Linear, Mlp, Norm
from mxconv.model.mixture import Mixture

EMBEDDING, HEAD, POSITIONS = "token_embd.weight", "output.weight", "position_embd.weight"


@dataclass(frozen=True)
class RowOrder:
    """Another order of a tensor's rows.

    Args:
        kind: "pairs" puts the two rows that rotate together side by side, in whole heads of `head_dim`; "blocks" puts
            the queries of all heads first, then keys, then values, where each head had its three.
        head_dim: rows of a head.
        rotary_dim: of them, the ones that rotate, from the first on.
    """

    kind: Literal["pairs", "blocks"]
    head_dim: int
    rotary_dim: int


@dataclass(frozen=True)
class Place:
    """A tensor's place.

    Args:
        name: GGUF's.
        order: None is as they are.
        offset: added to every value: what norms of some families leave out.
        is_transposed: whether the checkpoint has rows and columns exchanged.
        is_vector: whether llama.cpp computes with it in F32, matrix or not.
        expert: whose matrix it is of a stack of that name; None stands alone.
    """

    name: str
    order: RowOrder | None = None
    offset: float = 0.0
    is_transposed: bool = False
    is_vector: bool = False
    expert: int | None = None

    @property
    def module(self) -> str:
        """Its last name but one, such as attn_q."""
        return self.name.split(".")[-2]


def places(config: ModelConfig, architecture: Architecture) -> dict[str, Place]:
    """The places of all tensors that the model has, by the decoder's own names."""
    found = dict(_outside(config))
    for layer, parts in enumerate(config.layers):
        for name, place in _in_layer(parts, architecture):
            found[f"{config.layer_prefix}.{layer}.{name}"] = _named(place, architecture, layer)
    return found


def _outside(config: ModelConfig) -> Iterator[tuple[str, Place]]:
    yield config.embedding, Place(EMBEDDING)
    if not config.tie_word_embeddings:
        yield f"{config.head}.weight", Place(HEAD)
    if config.positions is not None:
        yield config.positions, Place(POSITIONS, is_vector=True)
    yield from _norm(config.final_norm, "output_norm")
    if (inputs := config.layer_inputs) is not None:
        yield inputs.table, Place("per_layer_token_embd.weight")
        yield from _linear(inputs.projection, "per_layer_model_proj")
        yield from _norm(inputs.norm, "per_layer_proj_norm")


def _named(place: Place, architecture: Architecture, layer: int) -> Place:
    module, _, parameter = place.name.rpartition(".")
    name = f"blk.{layer}.{architecture.names.get(module, module)}.{parameter}"
    return replace(place, name=name)


def _in_layer(parts: LayerParts, architecture: Architecture) -> Iterator[tuple[str, Place]]:
    yield from _attention(mixer_of(parts), architecture)
    yield from _mlp(mlp_of(parts))
    yield from _norm(parts.before_mixer, "attn_norm")
    yield from _norm(parts.after_mixer, "post_attention_norm")
    if parts.before_mlp != parts.before_mixer:  # side by side, both parts may take in the same rows
        yield from _norm(parts.before_mlp, "ffn_norm")
    yield from _norm(parts.after_mlp, "post_ffw_norm")
    if (own := parts.layer_input) is not None:
        yield from _linear(own.gate, "inp_gate")
        yield from _linear(own.projection, "proj")
        yield from _norm(own.norm, "post_norm")
    if parts.scalar is not None:
        yield parts.scalar, Place("layer_output_scale.weight")


def _attention(mixer: Attention, architecture: Architecture) -> Iterator[tuple[str, Place]]:
    order = None
    if mixer.rope is not None and architecture.pairs == "neighbours" and not mixer.rope.is_interleaved:
        order = RowOrder("pairs", mixer.head_dim, mixer.rope.rotary_dim(mixer.head_dim))
    if mixer.fused:
        yield from _linear(
            mixer.query, "attn_qkv", RowOrder("blocks", mixer.head_dim, 0) if mixer.fused == "heads" else None
        )
    else:
        yield from _linear(mixer.query, "attn_q", order)
        if mixer.source is None:
            yield from _linear(mixer.key, "attn_k", order)
        if mixer.source is None and not mixer.keys_are_values:
            yield from _linear(mixer.value, "attn_v")
    yield from _linear(mixer.output, "attn_output")
    yield from _norm(mixer.query_norm, "attn_q_norm")
    if mixer.source is None:
        yield from _norm(mixer.key_norm, "attn_k_norm")


def _mlp(mlp: Mlp | Mixture, suffix: str = "") -> Iterator[tuple[str, Place]]:
    if isinstance(mlp, Mixture):
        yield from _mixture(mlp)
        return
    yield from _linear(mlp.up, f"ffn_up{suffix}")
    yield from _linear(mlp.down, f"ffn_down{suffix}")
    if mlp.gate is not None and not mlp.fused:
        yield from _linear(mlp.gate, f"ffn_gate{suffix}")


def _mixture(mixture: Mixture) -> Iterator[tuple[str, Place]]:
    """Of experts that the checkpoint has one by one."""
    yield f"{mixture.routing.router.name}.weight", Place("ffn_gate_inp.weight", is_vector=True)
    if mixture.routing.correction is not None:
        yield mixture.routing.correction, Place("exp_probs_b.bias")
    assert mixture.experts.apart is not None
    for name, part in zip(mixture.experts.apart, ("gate", "up", "down"), strict=True):
        for expert in range(mixture.routing.num_experts):
            yield f"{name.format(expert)}.weight", Place(f"ffn_{part}_exps.weight", expert=expert)
    if mixture.shared is not None:
        yield from _mlp(mixture.shared, "_shexp")
    if mixture.shared_gate is not None:
        yield f"{mixture.shared_gate.name}.weight", Place("ffn_gate_inp_shexp.weight", is_vector=True)


def _linear(linear: Linear, module: str, order: RowOrder | None = None) -> Iterator[tuple[str, Place]]:
    yield f"{linear.name}.weight", Place(f"{module}.weight", order, is_transposed=linear.is_transposed)
    if linear.has_bias:
        yield f"{linear.name}.bias", Place(f"{module}.bias", order)


def _norm(norm: Norm | None, module: str) -> Iterator[tuple[str, Place]]:
    if norm is not None and norm.has_weight:
        yield f"{norm.name}.weight", Place(f"{module}.weight", offset=norm.offset)
    if norm is not None and norm.has_bias:
        yield f"{norm.name}.bias", Place(f"{module}.bias")
