"""Which parts of a description the native decoder has: where one is missing, NumPy runs the layers."""

from collections.abc import Iterator

from mxconv.model.config import ModelConfig
from mxconv.model.description import Attention, LayerParts
from mxconv.model.recurrent.description import GatedDeltaNet, Mamba2, ShortConvolution

MIXERS = {ShortConvolution: "short convolutions", GatedDeltaNet: "gated DeltaNet", Mamba2: "Mamba-2"}


def missing_parts(config: ModelConfig) -> tuple[str, ...]:
    """The parts that the native decoder lacks, in words; none where it runs the model."""
    found = (part for layer in config.layers for part in _of_layer(layer))
    return tuple(dict.fromkeys(found))  # each once, in their order


def _of_layer(layer: LayerParts) -> Iterator[str]:
    mixer = layer.mixer
    if not isinstance(mixer, Attention):
        yield MIXERS[type(mixer)]
    elif mixer.is_gated:
        yield "gates of what heads give"
    elif mixer.fused == "heads" and mixer.norm_span == "row":
        yield "norms of whole rows of heads that are fused one by one"
    if layer.mlp is None:
        yield "layers without an MLP"
