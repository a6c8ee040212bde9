"""The parts of a layer that are exported: attention over heads or a state, an MLP or experts."""

from collections.abc import Sequence

from mxconv.arch.config import ModelConfig
from mxconv.arch.description import Attention, LatentAttention, LayerParts
from mxconv.arch.elements import Activation, Mlp
from mxconv.arch.mixture import Mixture, Routing
from mxconv.arch.state_mixers import GatedDeltaNet, Mamba2, Recurrent
from mxconv.gguf.architectures import Architecture, State


def attentions(config: ModelConfig) -> tuple[Attention, ...]:
    """Attention over heads, in the order of layers; `check_fits` refuses other kinds before."""
    return tuple(layer.mixer for layer in config.layers if isinstance(layer.mixer, Attention))


def states(config: ModelConfig) -> tuple[Recurrent, ...]:
    """Mixers with a state, in the order of layers."""
    return tuple(layer.mixer for layer in config.layers if isinstance(layer.mixer, Recurrent))


def kind_of(mixer: Recurrent) -> State:
    """The kind of a mixer with a state."""
    if isinstance(mixer, GatedDeltaNet):
        return "fused_delta_net" if mixer.fused else "delta_net"
    return "mamba2" if isinstance(mixer, Mamba2) else "short_convolution"


def activation_of(layer: LayerParts) -> Activation | None:
    """The activation of a layer's MLP or experts; None of a layer that has neither."""
    mlp = layer.mlp
    return mlp.experts.activation if isinstance(mlp, Mixture) else None if mlp is None else mlp.activation


def unknown_parts(config: ModelConfig, architecture: Architecture) -> list[str]:
    """The parts of a model that are not exported, in words."""
    found = []
    if any(isinstance(layer.mixer, LatentAttention) for layer in config.layers):
        found.append("latent attention")
    if {kind_of(mixer) for mixer in states(config)} - {architecture.state}:
        found.append("mixers with such a state")
    mlps = [layer.mlp for layer in config.layers]
    if None in mlps and architecture.state != "mamba2":
        found.append("layers without an MLP")
    mixtures = [mlp for mlp in mlps if isinstance(mlp, Mixture)]
    if mixtures and architecture.experts is None:
        found.append("mixtures of experts")
    elif not mixtures and architecture.needs_experts:
        found.append("no experts")
    elif mixtures and not _may_lead(mlps, architecture):
        found.append("layers without experts among those with some")
    elif any(not _is_known(mixture, architecture) for mixture in mixtures):
        found.append("experts that are chosen, counted or shared in another way")
    for mixer in attentions(config):
        is_chunked = mixer.is_chunked and not architecture.is_chunked
        if is_chunked or (mixer.sinks is not None) != architecture.has_sinks or mixer.clip is not None:
            found.append("attention in chunks, with sinks or with clipped heads")
        if mixer.is_gated != architecture.is_gated:
            found.append(f"attention {'without' if architecture.is_gated else 'with'} gates of what its heads give")
    return found


def first_mixture(config: ModelConfig) -> Mixture | None:
    """The experts of the first layer that has some."""
    return next((layer.mlp for layer in config.layers if isinstance(layer.mlp, Mixture)), None)


def _may_lead(mlps: Sequence[Mlp | Mixture | None], architecture: Architecture) -> bool:
    """Whether layers without experts stand before all others, if at all."""
    kinds = [isinstance(mlp, Mixture) for mlp in mlps]
    if architecture.experts == "sigmoids":  # every so many layers
        return kinds == [(layer + 1) % (kinds.index(True) + 1) == 0 for layer in range(len(kinds))]
    return kinds == sorted(kinds) and (all(kinds) or architecture.experts == "keyed")


def _is_known(mixture: Mixture, architecture: Architecture) -> bool:
    """Whether llama.cpp does the same."""
    routing, experts = mixture.routing, mixture.experts
    norms = mixture.before_experts, mixture.after_experts, mixture.before_shared, mixture.after_shared
    others = routing.multipliers, routing.norm, routing.input_weights, *norms
    has_bias = architecture.clamped is not None
    shares = None if mixture.shared is None else "plain" if mixture.shared_gate is None else "gated"
    return (
        _is_routed(routing, architecture)
        and routing.num_groups == 1
        and not any(others)
        and experts.clamped == architecture.clamped
        and (routing.router.has_bias, experts.has_bias) == (has_bias, has_bias)
        and mixture.scales_input == (architecture.experts == "sigmoids")
        and shares == architecture.shares_expert
        and (mixture.shared is None or architecture.experts != "keyed" or mixture.shared.size % mixture.size == 0)
    )


def _is_routed(routing: Routing, architecture: Architecture) -> bool:
    """Whether rows choose alike; a softmax of the chosen is one of all divided by its sum."""
    if architecture.experts == "keyed":
        return routing.score == "sigmoid" and routing.correction is not None
    if architecture.experts == "sigmoids":
        own = routing.score == "sigmoid" and routing.correction is None
        return own and not routing.is_normalized and routing.multiplier == 1
    shares = "normalized" if routing.score == "softmax_of_chosen" or routing.is_normalized else "plain"
    is_plain = routing.score != "sigmoid" and routing.correction is None and routing.multiplier == 1
    return is_plain and shares == architecture.experts
