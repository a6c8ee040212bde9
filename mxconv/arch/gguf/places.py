"""Where all tensors of a model stand in a GGUF file, read off its description."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from mxconv.arch.config import ModelConfig
from mxconv.arch.description import Attention, LayerParts
from mxconv.arch.elements import Mlp
from mxconv.arch.gguf.architecture import Architecture
from mxconv.arch.gguf.expert_places import expert_places
from mxconv.arch.gguf.place import EMBEDDING, HEAD, POSITIONS, Place, RowOrder, of_linear, of_norm, of_rows
from mxconv.arch.gguf.recurrent_places import recurrent_places
from mxconv.arch.mixture import Mixture
from mxconv.arch.state_mixers import Recurrent


def places(config: ModelConfig, architecture: Architecture) -> dict[str, tuple[Place, ...]]:
    """The places of all tensors that the model may have, by the decoder's own names: a fused tensor has several."""
    found: dict[str, list[Place]] = defaultdict(list)
    for name, place in _outside(config):
        module, _, parameter = place.name.rpartition(".")
        found[name].append(replace(place, name=f"{architecture.names.get(module, module)}.{parameter}"))
    for layer, parts in enumerate(config.layers):
        for name, place in _in_layer(parts, architecture):
            found[f"{config.layer_prefix}.{layer}.{name}"].append(_named(place, architecture, layer))
    return {name: tuple(of_tensor) for name, of_tensor in found.items()}


def _outside(config: ModelConfig) -> Iterator[tuple[str, Place]]:
    yield config.embedding, Place(EMBEDDING)
    if not config.tie_word_embeddings:
        yield f"{config.head}.weight", Place(HEAD)
    if config.positions is not None:
        yield config.positions, Place(POSITIONS, is_vector=True)
    yield from of_norm(config.final_norm, "output_norm")
    if (inputs := config.layer_inputs) is not None:
        yield inputs.table, Place("per_layer_token_embd.weight")
        yield from of_linear(inputs.projection, "per_layer_model_proj")
        yield from of_norm(inputs.norm, "per_layer_proj_norm")


def _named(place: Place, architecture: Architecture, layer: int) -> Place:
    module, dot, parameter = place.name.rpartition(".")
    return replace(place, name=f"blk.{layer}.{architecture.names.get(module, module)}{dot}{parameter}")


def _in_layer(parts: LayerParts, architecture: Architecture) -> Iterator[tuple[str, Place]]:
    if isinstance(parts.mixer, Attention):
        yield from _attention(parts.mixer, architecture)
    elif isinstance(parts.mixer, Recurrent):
        yield from recurrent_places(parts.mixer)
    if isinstance(parts.mlp, Mixture):
        yield from expert_places(parts.mlp)
        if parts.mlp.shared is not None:
            yield from _mlp(parts.mlp.shared, architecture, "_shexp")
    elif parts.mlp is not None:
        yield from _mlp(parts.mlp, architecture)
    yield from of_norm(parts.before_mixer, "attn_norm")
    yield from of_norm(parts.after_mixer, "post_attention_norm")
    if parts.before_mlp != parts.before_mixer:  # side by side, both parts may take in the same rows
        yield from of_norm(parts.before_mlp, "ffn_norm")
    yield from of_norm(parts.after_mlp, "post_ffw_norm")
    if (own := parts.layer_input) is not None:
        yield from of_linear(own.gate, "inp_gate")
        yield from of_linear(own.projection, "proj")
        yield from of_norm(own.norm, "post_norm")
    if parts.scalar is not None:
        yield parts.scalar, Place("layer_output_scale.weight")


def _attention(mixer: Attention, architecture: Architecture) -> Iterator[tuple[str, Place]]:
    order = None
    if mixer.rope is not None and architecture.pairs == "neighbours" and not mixer.rope.is_interleaved:
        order = RowOrder("pairs", mixer.head_dim, mixer.rope.rotary_dim(mixer.head_dim))
    if mixer.fused:
        blocks = RowOrder("blocks", mixer.head_dim, 0) if mixer.fused == "heads" else None
        yield from of_linear(mixer.query, "attn_qkv", blocks)
    else:
        yield from of_linear(mixer.query, "attn_q", order)
        if mixer.source is None:
            yield from of_linear(mixer.key, "attn_k", order)
        if mixer.source is None and not mixer.keys_are_values:
            yield from of_linear(mixer.value, "attn_v")
    yield from of_linear(mixer.output, "attn_output")
    if mixer.sinks is not None:
        yield mixer.sinks, Place("attn_sinks.weight")
    yield from of_norm(mixer.query_norm, "attn_q_norm")
    if mixer.source is None:
        yield from of_norm(mixer.key_norm, "attn_k_norm")


def _mlp(mlp: Mlp, architecture: Architecture, suffix: str = "") -> Iterator[tuple[str, Place]]:
    yield from of_linear(mlp.down, f"ffn_down{suffix}")
    if mlp.gate is not None and mlp.fused and architecture.parts_gates:
        yield from of_rows(mlp.gate, f"ffn_gate{suffix}", (range(mlp.size),))
        yield from of_rows(mlp.up, f"ffn_up{suffix}", (range(mlp.size, 2 * mlp.size),))
        return
    yield from of_linear(mlp.up, f"ffn_up{suffix}")
    if mlp.gate is not None and not mlp.fused:
        yield from of_linear(mlp.gate, f"ffn_gate{suffix}")
