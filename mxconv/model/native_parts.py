"""Which parts of a description the native decoder has: where one is missing, NumPy runs the layers."""

import math
from collections.abc import Iterator

from mxconv.model.config import ModelConfig
from mxconv.model.description import Attention, LayerParts, Mlp, Norm
from mxconv.model.latent import LatentAttention
from mxconv.model.mixture import Mixture


def missing_parts(config: ModelConfig) -> tuple[str, ...]:
    """The parts that the native decoder lacks, in words; none where it runs the model."""
    found = [part for layer in config.layers for part in _of_layer(layer)]
    found += _of_model(config)
    return tuple(dict.fromkeys(found))  # each once, in their order


def _of_model(config: ModelConfig) -> Iterator[str]:
    mixers = [layer.mixer for layer in config.layers]
    if not _is_plain(config.final_norm):
        yield "layer norms"
    if config.layer_inputs is not None:
        yield "embeddings of the layers' own"
    if len({mixer.rope for mixer in mixers}) > 1:
        yield "rotations that differ between layers"
    if any(isinstance(mixer, LatentAttention) for mixer in mixers):
        yield "latent attention"
    if len({(mixer.num_heads, mixer.num_key_value_heads, mixer.head_dim) for mixer in mixers}) > 1:
        yield "heads that differ between layers"
    if len({layer.mlp.size for layer in config.layers}) > 1:
        yield "MLPs of different sizes"
    norms = [norm for layer in config.layers for norm in _norms(layer)]
    if any(norm.eps != config.final_norm.eps for norm in norms):
        yield "norms of different epsilons"


def _of_layer(layer: LayerParts) -> Iterator[str]:
    if any(not _is_plain(norm) for norm in _norms(layer)):
        yield "layer norms"
    if layer.before_mixer is None or layer.before_mlp is None or layer.after_mixer or layer.after_mlp:
        yield "norms behind attention or MLP"
    if layer.is_parallel:
        yield "attention and MLP side by side"
    if layer.residual_multiplier != 1 or layer.scalar is not None:
        yield "multipliers of what layers add"
    if isinstance(layer.mixer, Attention):
        yield from _of_attention(layer.mixer)
    yield from ("mixtures of experts",) if isinstance(layer.mlp, Mixture) else _of_mlp(layer.mlp)


def _of_attention(mixer: Attention) -> Iterator[str]:
    if mixer.rope is None:
        yield "layers without rotation"
    elif mixer.rope.is_interleaved:
        yield "rotation of neighbours"
    elif mixer.rope.rotary_dim(mixer.head_dim) != mixer.head_dim:
        yield "rotation of a part of each head"
    if mixer.fused:
        yield "fused matrices"
    if any(each.is_transposed for each in (mixer.query, mixer.output)):
        yield "matrices that are stored turned"
    if mixer.value_norm or mixer.norm_span == "row" or mixer.norms_rotated:
        yield "norms of whole rows of heads, of values, or behind rotation"
    if mixer.scale != 1 / math.sqrt(mixer.head_dim):
        yield "attention scaled by its own factor"
    if mixer.logit_cap is not None:
        yield "a cap on attention"
    if mixer.temperature is not None:
        yield "attention whose temperature grows"
    if mixer.sinks is not None or mixer.clip is not None or mixer.is_chunked:
        yield "attention sinks, clipped heads or attention in chunks"
    if mixer.source is not None or mixer.keys_are_values:
        yield "keys or values that are shared"


def _of_mlp(mlp: Mlp) -> Iterator[str]:
    if mlp.fused:
        yield "fused matrices"
    if mlp.up.is_transposed or mlp.down.is_transposed:
        yield "matrices that are stored turned"
    if mlp.gate is None:
        yield "MLPs without a gate"
    if mlp.activation != "silu":
        yield f"activation {mlp.activation}"


def _norms(layer: LayerParts) -> list[Norm]:
    mixer = layer.mixer
    of_heads = () if isinstance(mixer, LatentAttention) else (mixer.query_norm, mixer.key_norm)
    return [norm for norm in (layer.before_mixer, layer.before_mlp, *of_heads) if norm is not None]


def _is_plain(norm: Norm) -> bool:
    """Whether it has a factor a number and nothing else; an offset is added when it is loaded."""
    return norm.kind == "rms" and norm.has_weight and not norm.has_bias
