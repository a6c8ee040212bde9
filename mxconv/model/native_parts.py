"""Which parts of a description the native decoder has: where one is missing, NumPy runs the layers."""

from collections.abc import Iterator

from mxconv.model.config import ModelConfig
from mxconv.model.description import Attention, LayerParts
from mxconv.model.latent import LatentAttention
from mxconv.model.mixture import Mixture
from mxconv.model.recurrent.description import GatedDeltaNet, Mamba2, Recurrent, ShortConvolution

MIXERS = {ShortConvolution: "short convolutions", GatedDeltaNet: "gated DeltaNet", Mamba2: "Mamba-2"}

ROWS = 16  # of a tile, with which ups begin behind gates


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
        yield from _of_mixture(layer.mlp, layer)


def _of_mixture(mixture: Mixture, layer: LayerParts) -> Iterator[str]:
    routing, experts = mixture.routing, mixture.experts
    inner = (mixture.before_experts, mixture.after_experts, mixture.before_shared, mixture.after_shared)
    if any(inner) or layer.before_mlp is None or layer.after_mlp or layer.is_parallel:
        yield "norms inside mixtures, or behind them"
    if mixture.scales_input:
        yield "experts whose input is scaled"
    if experts.clamped is not None or experts.has_bias or experts.is_interleaved or routing.router.has_bias:
        yield "clamped experts with biases"
    if routing.norm or routing.input_weights or routing.multipliers:
        yield "routers with norms and weights of their own"
    if experts.size % ROWS:
        yield f"experts of a size that is no multiple of {ROWS}"


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
