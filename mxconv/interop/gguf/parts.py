"""The parts of a layer as those architectures have them that are exported: attention over heads, and one MLP."""

from mxconv.model.config import ModelConfig
from mxconv.model.description import Attention, LayerParts, Mlp


def mixer_of(layer: LayerParts) -> Attention:
    """Its attention; `check_fits` refuses other mixers before."""
    assert isinstance(layer.mixer, Attention)
    return layer.mixer


def mlp_of(layer: LayerParts) -> Mlp:
    """Its MLP; `check_fits` refuses mixtures of experts before."""
    assert isinstance(layer.mlp, Mlp)
    return layer.mlp


def unknown_parts(config: ModelConfig) -> list[str]:
    """What a model has in the place of these, in words."""
    found = []
    if any(not isinstance(layer.mixer, Attention) for layer in config.layers):
        found.append("mixers other than attention over heads")
    if any(not isinstance(layer.mlp, Mlp) for layer in config.layers):
        found.append("mixtures of experts")
    attentions = [layer.mixer for layer in config.layers if isinstance(layer.mixer, Attention)]
    if any(mixer.is_chunked or mixer.sinks is not None or mixer.clip is not None for mixer in attentions):
        found.append("attention in chunks, with sinks or with clipped heads")
    return found
