"""Which parts of a description the native decoder has: where one is missing, NumPy runs the layers."""

from collections.abc import Iterator

from mxconv.arch.config import ModelConfig
from mxconv.arch.description import Attention, LayerParts
from mxconv.arch.mixture import Mixture


def missing_parts(config: ModelConfig) -> tuple[str, ...]:
    """The parts that the native decoder lacks, in words; none where it runs the model."""
    found = (part for layer in config.layers for part in _of_layer(layer))
    return tuple(dict.fromkeys(found))  # each once, in their order


def _of_layer(layer: LayerParts) -> Iterator[str]:
    if isinstance(layer.mixer, Attention):
        yield from _of_attention(layer.mixer)
    if isinstance(layer.mlp, Mixture):
        yield from _of_mixture(layer.mlp, layer)


def _of_mixture(mixture: Mixture, layer: LayerParts) -> Iterator[str]:
    routing = mixture.routing
    if layer.is_parallel:
        yield "mixtures beside their mixers"
    if layer.before_mlp and (mixture.before_experts or mixture.before_shared or routing.norm):
        yield "norms of what is normed before a mixture"
    if mixture.shared_gate and mixture.before_shared:
        yield "a gate that takes in other rows than what it multiplies"
    if routing.input_weights and not (layer.before_mlp or routing.norm):
        yield "weights of what a router takes in without a norm"


def _of_attention(mixer: Attention) -> Iterator[str]:
    if mixer.is_gated and (mixer.fused or mixer.norm_span == "row"):
        yield "gates of heads that are fused, or normed together"
