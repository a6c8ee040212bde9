"""Which parts of a description the native decoder has: where one is missing, NumPy runs the layers."""

from collections.abc import Iterator

from mxconv.model.config import ModelConfig
from mxconv.model.description import Attention, LayerParts
from mxconv.model.mixture import Mixture
from mxconv.model.recurrent.description import GatedDeltaNet, Mamba2, Recurrent, ShortConvolution

MIXERS = {ShortConvolution: "short convolutions", GatedDeltaNet: "gated DeltaNet", Mamba2: "Mamba-2"}


def missing_parts(config: ModelConfig) -> tuple[str, ...]:
    """The parts that the native decoder lacks, in words; none where it runs the model."""
    found = (part for layer in config.layers for part in _of_layer(layer))
    return tuple(dict.fromkeys(found))  # each once, in their order


def _of_layer(layer: LayerParts) -> Iterator[str]:
    if isinstance(layer.mixer, Recurrent):
        yield MIXERS[type(layer.mixer)]
    elif isinstance(layer.mixer, Attention) and layer.mixer.is_gated:
        yield "gates of what heads give"
    if layer.mlp is None:
        yield "layers without an MLP"
    elif isinstance(layer.mlp, Mixture):
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
