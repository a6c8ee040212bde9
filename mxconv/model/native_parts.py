"""Which parts of a description the native decoder has: where one is missing, NumPy runs the layers."""

from collections.abc import Iterator

from mxconv.model.config import ModelConfig
from mxconv.model.description import Attention, LayerParts
from mxconv.model.latent import LatentAttention
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
    elif isinstance(layer.mixer, LatentAttention):
        yield "latent attention"
    else:
        yield from _of_attention(layer.mixer)
    if layer.mlp is None:
        yield "layers without an MLP"
    elif isinstance(layer.mlp, Mixture):
        yield "mixtures of experts"


def _of_attention(mixer: Attention) -> Iterator[str]:
    if mixer.is_gated:
        yield "gates of what heads give"
    if mixer.fused == "heads" and mixer.norm_span == "row":
        yield "norms of whole rows of heads that are fused one by one"
    if mixer.sinks is not None:
        yield "attention sinks"
    if mixer.clip is not None:
        yield "clipped heads"
    if mixer.is_chunked:
        yield "attention in chunks"
