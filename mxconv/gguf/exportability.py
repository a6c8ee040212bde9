"""Whether llama.cpp's model of an architecture computes what a description says; a refusal that names what it lacks."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from mxconv.arch.config import ModelConfig
from mxconv.arch.description import Attention, LatentAttention, LayerParts
from mxconv.arch.elements import Activation, GatedDeltaNet, Linear, Mamba2, Mixture, Mlp, Recurrent, Routing
from mxconv.errors import ModelError
from mxconv.gguf.architectures import MLP, Architecture, State, attentions, states
from mxconv.gguf.rotations import far_rope, near_rope, reads_betas

CHUNK = 8192  # llama.cpp's only length
GELU = {"gelu", "gelu_tanh"}


def check_exportable(config: ModelConfig, architecture: Architecture, path: Path) -> None:
    """Raise ModelError, naming the first difference, where llama.cpp's model is not what a description says."""
    for difference in _differences(config, architecture):
        raise ModelError(
            f"{path}: {difference}, which llama.cpp's {architecture.name} does not have; GGUF can hold this model only "
            "without it. Export with --to safetensors."
        )


def _differences(config: ModelConfig, architecture: Architecture) -> Iterator[str]:
    """Name in words each thing that the model has and llama.cpp's does not."""
    yield from _parts(config, architecture)
    yield from _sizes(config, architecture)
    yield from _states(config)
    yield from _ropes(config, architecture)
    yield from _numbers(config, architecture)
    yield from _biases(config, architecture)
    yield from _shared_keys(config)
    for index, layer in enumerate(config.layers):
        mixer, activation = layer.mixer, activation_of(layer)
        if activation not in (None, architecture.activation) and not {activation, architecture.activation} <= GELU:
            yield f"hidden_act {activation}"
        if not isinstance(mixer, Attention):
            continue
        if (mixer.rope is not None) != (architecture.rotates(config, index) and config.positions is None):
            yield f"layer {index} {'rotates' if mixer.rope is not None else 'rotates nothing'}"
        own = architecture.temperature if mixer.rope is None else None
        if mixer.temperature != own and not architecture.has_temperature:
            yield "queries that grow with their position in another way"


def activation_of(layer: LayerParts) -> Activation | None:
    """The activation of a layer's MLP or experts; None of a layer that has neither."""
    mlp = layer.mlp
    return mlp.experts.activation if isinstance(mlp, Mixture) else None if mlp is None else mlp.activation


def _kind_of(mixer: Recurrent) -> State:
    """The kind of a mixer with a state."""
    if isinstance(mixer, GatedDeltaNet):
        return "fused_delta_net" if mixer.fused else "delta_net"
    return "mamba2" if isinstance(mixer, Mamba2) else "short_convolution"


def _parts(config: ModelConfig, architecture: Architecture) -> Iterator[str]:
    """Name parts of a kind that it does not have."""
    if any(isinstance(layer.mixer, LatentAttention) for layer in config.layers):
        yield "latent attention"
    if {_kind_of(mixer) for mixer in states(config)} - {architecture.state}:
        yield "mixers with such a state"
    mlps = [layer.mlp for layer in config.layers]
    if None in mlps and architecture.state != "mamba2":
        yield "layers without an MLP"
    mixtures = [mlp for mlp in mlps if isinstance(mlp, Mixture)]
    if mixtures and architecture.experts is None:
        yield "mixtures of experts"
    elif not mixtures and architecture.needs_experts:
        yield "no experts"
    elif mixtures and not _may_lead(mlps, architecture):
        yield "layers without experts among those with some"
    elif any(not _is_known(mixture, architecture) for mixture in mixtures):
        yield "experts that are chosen, counted or shared in another way"
    for mixer in attentions(config):
        is_chunked = mixer.is_chunked and not architecture.is_chunked
        if is_chunked or (mixer.sinks is not None) != architecture.has_sinks or mixer.clip is not None:
            yield "attention in chunks, with sinks or with clipped heads"
        if mixer.is_gated != architecture.is_gated:
            yield f"attention {'without' if architecture.is_gated else 'with'} gates of what its heads give"


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


def _sizes(config: ModelConfig, architecture: Architecture) -> Iterator[str]:
    if architecture.head == "embedding" and not config.tie_word_embeddings:
        yield "an output head of its own (tie_word_embeddings false)"
    if not (mixers := attentions(config)):
        return
    first = mixers[0]
    if architecture.fills_hidden and first.head_dim * first.num_heads != config.hidden_size:
        yield f"{first.num_heads} heads of {first.head_dim} values that do not make hidden_size, {config.hidden_size}"
    if not architecture.shares_keys and first.num_key_value_heads != first.num_heads:
        yield f"{first.num_key_value_heads} keys for {first.num_heads} heads"
    windows = {window for window in config.windows if window is not None}
    if architecture.is_chunked and windows != {CHUNK}:
        yield f"attention in chunks of {sorted(windows)}, not {CHUNK}"
    if architecture.windows and len(windows) > 1:
        yield f"windows of several lengths, {sorted(windows)}"
    depth = architecture.num_layers_with_windows
    if windows and depth is not None and config.num_hidden_layers != depth:
        yield f"windows in a model of {config.num_hidden_layers} layers, not {depth}"


def _states(config: ModelConfig) -> Iterator[str]:
    """Differences of mixers with a state."""
    for mixer in states(config):
        ends = (mixer.inputs, mixer.output) if not isinstance(mixer, GatedDeltaNet) else (mixer.output,)
        for linear in ends:
            if linear.has_bias:
                yield f"a bias of {linear.name}"
        if mixer.convolution.has_bias != isinstance(mixer, Mamba2):
            yield f"{mixer.convolution.name} {'with' if mixer.convolution.has_bias else 'without'} a bias"
        if isinstance(mixer, GatedDeltaNet) and mixer.key_dim != mixer.value_dim:
            yield f"value heads of {mixer.value_dim} numbers beside key heads of {mixer.key_dim}"
        if isinstance(mixer, Mamba2) and mixer.step_limits != (0.0, math.inf):
            yield f"time_step_limit {list(mixer.step_limits)}"
        if isinstance(mixer, Mamba2) and mixer.activation != "silu":
            yield f"hidden_act {mixer.activation}"
        if isinstance(mixer, Mamba2) and config.attentions and mixer.size != 2 * config.hidden_size:
            yield f"a state space of {mixer.size} numbers, not twice hidden_size, {config.hidden_size}"


def _ropes(config: ModelConfig, architecture: Architecture) -> Iterator[str]:
    far, near = far_rope(config), near_rope(config)
    if far is None:
        return
    if far.rope_type not in architecture.scalings:
        yield f"rope_type {far.rope_type}"
    if far.rope_type == "yarn" and not far.truncates and not architecture.rounds_yarn:
        yield "YaRN without rounding (truncate false)"
    if not reads_betas(far, architecture):
        yield f"YaRN's beta_fast {far.beta_fast:g} and beta_slow {far.beta_slow:g}"
    if near is None or architecture.near_rope == "same":
        if near not in (None, far):
            yield "rotations of their own in layers with a window"
        return
    if near.rope_type != "default":
        yield f"rope_type {near.rope_type} in layers with a window"
    if architecture.near_rope == "unscaled" and near.theta != far.theta:
        yield f"rope_theta {near.theta:g} in layers with a window"


def _numbers(config: ModelConfig, architecture: Architecture) -> Iterator[str]:
    expected = math.sqrt(config.hidden_size) if architecture.grows_embedding else 1.0
    read = architecture.numbers
    if "embedding_multiplier" not in read and not math.isclose(config.embedding_multiplier, expected, rel_tol=1e-6):
        yield f"embeddings that are multiplied by {config.embedding_multiplier:g}"
    if not read & {"logit_multiplier", "logit_divisor"} and config.logit_multiplier != 1:
        yield f"logits that are multiplied by {config.logit_multiplier:g}"
    if "logit_cap" not in read and config.logit_cap is not None:
        yield f"final_logit_softcapping {config.logit_cap:g}"
    caps = {mixer.logit_cap for mixer in attentions(config)}
    if "attention_cap" not in read and caps - {None}:
        yield "attn_logit_softcapping"
    if "attention_cap" in read and (None in caps or len(caps) > 1 or config.logit_cap is None):
        yield "scores or logits without a cap"
    for layer in config.layers:
        if "residual_multiplier" not in read and layer.residual_multiplier != 1:
            yield f"residual_multiplier {layer.residual_multiplier:g}"
    for mixer in attentions(config):
        scale = architecture.scale
        if scale is not None and not math.isclose(mixer.scale, scale(config, mixer), rel_tol=1e-6):
            yield f"scores that are multiplied by {mixer.scale:g}, not {scale(config, mixer):g}"


def _biases(config: ModelConfig, architecture: Architecture) -> Iterator[str]:
    for layer in config.layers:
        mixer, mlp, linears = layer.mixer, layer.mlp, list[tuple[str, Linear]]()
        if isinstance(mixer, Attention):
            linears += [("attn_qkv" if mixer.fused else "attn_q", mixer.query), ("attn_output", mixer.output)]
        if isinstance(mlp, Mlp):
            linears += [("ffn_up", mlp.up), ("ffn_down", mlp.down)]
        for module, linear in linears:
            if linear.has_bias and module not in architecture.biases:
                yield f"a bias of {linear.name}"
            needs = architecture.needs_biases and (module in MLP or module in ("attn_qkv", "attn_output"))
            if needs and not linear.has_bias:
                yield f"{linear.name} without a bias"


def _shared_keys(config: ModelConfig) -> Iterator[str]:
    """Layers without keys: llama.cpp gives the last ones those of the last layer of their kind that has some."""
    sources = [mixer.source for mixer in attentions(config)]
    if not any(source is not None for source in sources):
        return
    own = next(index for index, source in enumerate(sources) if source is not None)
    for index in range(own, len(sources)):
        expected = own - (2 if config.windows[index] is not None else 1)
        if sources[index] != expected:
            yield f"layer {index} reads the keys of layer {sources[index]}, not {expected}"
