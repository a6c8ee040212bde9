"""The parts of a layer as those architectures have them that are exported: attention over heads, an MLP or experts."""

from collections.abc import Sequence

from mxconv.interop.gguf.architecture import Architecture
from mxconv.model.config import ModelConfig
from mxconv.model.description import Activation, Attention, LayerParts, Mlp
from mxconv.model.mixture import Mixture, Routing


def mixer_of(layer: LayerParts) -> Attention:
    """Its attention; `check_fits` refuses other mixers before."""
    assert isinstance(layer.mixer, Attention)
    return layer.mixer


def mlp_of(layer: LayerParts) -> Mlp | Mixture:
    """Its MLP or experts; `check_fits` refuses layers without before."""
    assert layer.mlp is not None
    return layer.mlp


def activation_of(layer: LayerParts) -> Activation:
    """Of its MLP, or of its experts."""
    mlp = mlp_of(layer)
    return mlp.activation if isinstance(mlp, Mlp) else mlp.experts.activation


def unknown_parts(config: ModelConfig, architecture: Architecture) -> list[str]:
    """What a model has in the place of these, in words."""
    found = []
    if any(not isinstance(layer.mixer, Attention) for layer in config.layers):
        found.append("mixers other than attention over heads")
    mlps = [layer.mlp for layer in config.layers]
    if None in mlps:
        found.append("layers without an MLP")
    mixtures = [mlp for mlp in mlps if isinstance(mlp, Mixture)]
    if mixtures and architecture.experts is None:
        found.append("mixtures of experts")
    elif mixtures and not _may_lead(mlps, architecture):
        found.append("layers without experts among those with some")
    elif any(not _is_known(mixture, architecture) for mixture in mixtures):
        found.append("experts that are chosen, counted or shared in another way")
    attentions = [layer.mixer for layer in config.layers if isinstance(layer.mixer, Attention)]
    if any(mixer.is_chunked or mixer.sinks is not None or mixer.clip is not None for mixer in attentions):
        found.append("attention in chunks, with sinks or with clipped heads")
    return found


def first_mixture(config: ModelConfig) -> Mixture | None:
    """The experts of the first layer that has some."""
    return next((layer.mlp for layer in config.layers if isinstance(layer.mlp, Mixture)), None)


def _may_lead(mlps: Sequence[Mlp | Mixture | None], architecture: Architecture) -> bool:
    """Whether layers without experts stand before all others, if at all."""
    kinds = [isinstance(mlp, Mixture) for mlp in mlps]
    return kinds == sorted(kinds) and (all(kinds) or architecture.experts == "keyed")


def _is_known(mixture: Mixture, architecture: Architecture) -> bool:
    """Whether llama.cpp does the same."""
    routing, experts = mixture.routing, mixture.experts
    norms = mixture.before_experts, mixture.after_experts, mixture.before_shared, mixture.after_shared
    others = routing.multipliers, routing.norm, routing.input_weights, experts.clamped, *norms
    is_shared = mixture.shared is not None
    return (
        _is_routed(routing, architecture)
        and routing.num_groups == 1
        and not any(others)
        and not (routing.router.has_bias or experts.has_bias or mixture.scales_input)
        and experts.apart is not None
        and is_shared == architecture.shares_expert
        and (mixture.shared_gate is not None) == (is_shared and architecture.experts != "keyed")
        and (mixture.shared is None or architecture.experts != "keyed" or mixture.shared.size % mixture.size == 0)
    )


def _is_routed(routing: Routing, architecture: Architecture) -> bool:
    """Whether rows choose alike; a softmax of the chosen is one of all divided by its sum."""
    if architecture.experts == "keyed":
        return routing.score == "sigmoid" and routing.correction is not None
    shares = "normalized" if routing.score == "softmax_of_chosen" or routing.is_normalized else "plain"
    is_plain = routing.score != "sigmoid" and routing.correction is None and routing.multiplier == 1
    return is_plain and shares == architecture.experts
