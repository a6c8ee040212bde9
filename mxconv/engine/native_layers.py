"""From layers to what the native decoder takes: the same parts, over weights that stay where they are."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from mxconv.arch.description import Temperature
from mxconv.arrays import F32
from mxconv.engine.attention import WeightedAttention
from mxconv.engine.experts import ExpertMatrices, WeightedMixture
from mxconv.engine.latent_attention import WeightedLatentAttention
from mxconv.engine.layer import Layer
from mxconv.engine.mlp import WeightedInput, WeightedMlp
from mxconv.engine.recurrent import (
    EPS,
    RecurrentMixer,
    WeightedConvolution,
    WeightedDeltaNet,
    WeightedMamba2,
    WeightedShortConvolution,
)
from mxconv.engine.rope import Positions, RotaryEmbedding
from mxconv.engine.routing import Router
from mxconv.engine.sight import SinkWindow
from mxconv.engine.weights import DeferredMatrix, Projection, WeightedNorm
from mxconv.kernels import _native
from mxconv.kernels.matrix import Matrix
from mxconv.kernels.native_matrix import NativeMatrix


def native_projection(projection: Projection) -> _native.Projection:
    """A matrix and its bias."""
    bias = None if projection.bias is None else native_vector(projection.bias)
    return _native.Projection(native_handle(projection), bias)


def native_handle(projection: Projection) -> _native.Matrix:
    """The matrix alone."""
    assert isinstance(projection.matrix, NativeMatrix), "made of native matrices"
    return projection.matrix.handle


def native_norm(norm: WeightedNorm | None) -> _native.Norm | None:
    """A norm, if there is one."""
    if norm is None:
        return None
    bias = None if norm.bias is None else native_vector(norm.bias)
    return _native.Norm(native_vector(norm.weight), bias, norm.parts.eps, norm.parts.kind == "layer")


def native_vector(values: F32) -> F32:
    """As kernels read it."""
    return np.require(values, np.float32, ["C", "A"])


@dataclass
class Tables:
    """What layers look up by a row's position, each kind once: a native layer names it by its place here."""

    rotations: list[RotaryEmbedding] = field(default_factory=list)
    temperatures: list[Temperature] = field(default_factory=list)

    def rotation(self, attention: WeightedAttention | WeightedLatentAttention) -> _native.HeadRotation:
        """The place of a layer's rotations."""
        rotary, rope = attention.rotary, attention.parts.rope
        if rotary is None or rope is None:
            return _native.HeadRotation(-1, 0, False)
        if rotary not in self.rotations:
            self.rotations.append(rotary)
        return _native.HeadRotation(self.rotations.index(rotary), len(rotary.frequencies), rope.is_interleaved)

    def temperature(self, temperature: Temperature | None) -> int:
        """The place of a layer's temperature; -1 is none."""
        if temperature is None:
            return -1
        if temperature not in self.temperatures:
            self.temperatures.append(temperature)
        return self.temperatures.index(temperature)

    def of(self, positions: Positions) -> tuple[list[tuple[F32, F32]], list[F32]]:
        """Cosines and sines, (num_rows, pairs) each, and factors of queries, (num_rows,), for the rows of a pass."""
        rotations = [positions.rotations(rotary) for rotary in self.rotations]
        factors = [positions.temperatures(temperature)[:, 0, 0] for temperature in self.temperatures]
        return [(cosines[:, 0], sines[:, 0]) for cosines, sines in rotations], factors


def native_layer(layer: Layer, tables: Tables, slots: Sequence[int]) -> _native.Layer:
    """What a layer does, without the parts that a draft skips.

    Args:
        layer: with its tensors.
        tables: of the decoder.
        slots: of all layers, in a cache.
    """
    branches = []
    if isinstance(layer.mixer, RecurrentMixer):
        mixer = native_recurrent(layer.mixer, slots[layer.index], layer.skips_attention)
        branches.append(_of_mixer(layer, mixer))
    elif not layer.skips_attention:
        branches.append(_of_mixer(layer, _of_attention(layer.mixer, layer.sink_window, tables, slots)))
    if layer.mlp is not None and not layer.skips_mlp:
        branches += _of_mlp(layer)
        if layer.layer_input is not None:
            added = native_layer_input(layer.layer_input, layer.index)
            branches.append(_native.Branch(added, None, False, native_norm(layer.layer_input.norm), 1.0))
    return _native.Layer(branches, 1.0 if layer.scalar is None else float(layer.scalar[0]))


def _of_mixer(layer: Layer, mixer: _native.Part) -> _native.Branch:
    norms = native_norm(layer.before_mixer), native_norm(layer.after_mixer)
    return _native.Branch(mixer, norms[0], False, norms[1], layer.parts.residual_multiplier)


def _of_mlp(layer: Layer) -> list[_native.Branch]:
    """An MLP; or experts, and beside them what all rows go through."""
    before, after = native_norm(layer.before_mlp), native_norm(layer.after_mlp)
    mlp, multiplier = layer.mlp, layer.parts.residual_multiplier
    made: list[tuple[_native.Part, _native.Norm | None]] = []
    assert mlp is not None
    if isinstance(mlp, WeightedMlp):
        return [_native.Branch(native_mlp(mlp), before, layer.parts.is_parallel, after, multiplier)]
    taken = native_norm(mlp.before_shared) or before
    if mlp.num_chosen:
        made.append((native_mixture(mlp, layer.before_mlp), native_norm(mlp.after_experts)))
    if mlp.shared is not None:
        made.append((native_mlp(mlp.shared, mlp.shared_gate), native_norm(mlp.after_shared)))
    if made and after is not None:
        return [_native.Branch(_native.joined(made), taken, False, after, multiplier)]
    return [_native.Branch(part, taken, place > 0, norm, multiplier) for place, (part, norm) in enumerate(made)]


def _of_attention(
    attention: WeightedAttention | WeightedLatentAttention,
    sinks: SinkWindow | None,
    tables: Tables,
    slots: Sequence[int],
) -> _native.Part:
    """The attention of a layer; `sinks` is a draft's."""
    window = attention.parts.window or 0
    is_chunked = isinstance(attention, WeightedAttention) and attention.parts.is_chunked
    sight = _native.Sight(window, sinks.sink if sinks else 0, sinks.window if sinks else 0, is_chunked)
    if isinstance(attention, WeightedLatentAttention):
        return native_latent(attention, sight, tables.rotation(attention), slots[attention.index])
    return native_attention(attention, sight, tables, slots)


def native_attention(
    attention: WeightedAttention, sight: _native.Sight, tables: Tables, slots: Sequence[int]
) -> _native.Part:
    """Attention over keys and values."""
    parts = attention.parts
    own = None if parts.fused else attention.key, None if parts.fused else attention.value
    return _native.attention(
        layer=slots[attention.index],
        source=slots[attention.index if parts.source is None else parts.source],
        num_heads=parts.num_heads,
        num_key_value_heads=parts.num_key_value_heads,
        head_dim=parts.head_dim,
        query=native_projection(attention.query),
        key=None if own[0] is None else native_projection(own[0]),
        value=None if own[1] is None else native_projection(own[1]),
        output=native_projection(attention.output),
        fused=parts.fused,
        scale=parts.scale,
        sight=sight,
        norms=_native.HeadNorms(
            native_norm(attention.query_norm),
            native_norm(attention.key_norm),
            native_norm(attention.value_norm),
            parts.norm_span == "row" and (attention.query_norm or attention.key_norm) is not None,
            parts.norms_rotated,
            parts.clip or 0.0,
        ),
        rotation=tables.rotation(attention),
        temperature=tables.temperature(parts.temperature),
        logit_cap=parts.logit_cap or 0.0,
        is_gated=parts.is_gated,
        sinks=None if attention.sinks is None else native_vector(attention.sinks),
    )


def native_mlp(mlp: WeightedMlp, row_gate: Projection | None = None) -> _native.Part:
    """The MLP of a layer; `row_gate` is one whose sigmoid multiplies what it makes of a row."""
    return _native.mlp(
        activation=mlp.parts.activation,
        gate=None if mlp.gate is None else native_projection(mlp.gate),
        up=native_projection(mlp.up),
        down=native_projection(mlp.down),
        row_gate=None if row_gate is None else native_projection(row_gate),
        is_fused=mlp.parts.fused,
        layer_input=-1,
    )


def native_layer_input(own: WeightedInput, index: int) -> _native.Part:
    """Embeddings of the layer's own: an MLP in which they stand for what would multiply the gate."""
    return _native.mlp(
        activation=own.parts.activation,
        gate=native_projection(own.gate),
        up=None,
        down=native_projection(own.projection),
        row_gate=None,
        is_fused=False,
        layer_input=index,
    )


def native_latent(
    attention: WeightedLatentAttention, sight: _native.Sight, rotation: _native.HeadRotation, slot: int
) -> _native.Part:
    """Attention over the latent vectors in a slot of a cache.

    The matrices of heads' keys and values stay float32, as NumPy has them.
    """
    latent_norm = native_norm(attention.latent_norm)
    assert latent_norm is not None
    down = attention.query_down
    return _native.latent_attention(
        layer=slot,
        query_down=None if down is None else native_projection(down),
        query_norm=native_norm(attention.query_norm),
        query=native_projection(attention.query),
        down=native_projection(attention.down),
        latent_norm=latent_norm,
        key_up=native_vector(attention.key_up),
        value_up=native_vector(attention.value_up),
        output=native_projection(attention.output),
        scale=attention.parts.scale,
        sight=sight,
        rotation=rotation,
    )


Expert = tuple[_native.Projection, _native.Projection | None, _native.Projection]


def native_mixture(mixture: WeightedMixture, before: WeightedNorm | None) -> _native.Part:
    """The experts of a layer behind its norm, or behind one of their own; at least one is chosen."""
    parts, router = mixture.parts.experts, mixture.router
    norm, routed = mixture.before_experts or before, router.norm or before
    is_apart = routed is not norm or router.input_weights is not None
    return _native.mixture(
        activation=parts.activation,
        clamped=None if parts.clamped is None else (parts.clamped.slope, parts.clamped.limit),
        is_interleaved=parts.is_interleaved,
        scales_input=mixture.parts.scales_input,
        norm=native_norm(norm),
        router_norm=_router_norm(routed, router) if is_apart else None,
        is_routed_apart=is_apart,
        routing=_routing(router, mixture.num_chosen),
        experts=[_expert(mixture.experts, number) for number in range(router.parts.num_experts)],
    )


def _router_norm(norm: WeightedNorm | None, router: Router) -> _native.Norm | None:
    """With the weights of what the router takes in."""
    if norm is not None and router.input_weights is not None:
        factors = router.input_weights * np.float32(router.parts.input_multiplier)
        bias = None if norm.bias is None else norm.bias * factors
        norm = replace(norm, weight=norm.weight * factors, bias=bias)
    return native_norm(norm)


def _routing(router: Router, num_chosen: int) -> _native.Routing:
    routing = router.parts
    return _native.Routing(
        router=native_projection(router.projection),
        num_chosen=num_chosen,
        score=routing.score,
        is_normalized=routing.is_normalized,
        correction=None if router.correction is None else native_vector(router.correction),
        groups=(routing.num_groups, routing.num_chosen_groups),
        multiplier=routing.multiplier,
        multipliers=None if router.multipliers is None else native_vector(router.multipliers),
    )


def _expert(experts: ExpertMatrices, number: int) -> Expert:
    down = _projection(experts.down(number), experts.down_bias, number)
    if experts.both is not None:
        return _projection(experts.both(number), experts.both_bias, number), None, down
    return _projection(experts.gate(number)), _projection(experts.up(number)), down


def _projection(matrix: Matrix, biases: Matrix | None = None, number: int = 0) -> _native.Projection:
    made = matrix.matrix if isinstance(matrix, DeferredMatrix) else matrix
    assert isinstance(made, NativeMatrix), "made of native matrices"
    bias = None if biases is None else native_vector(biases.rows(np.array([number]))[0])
    return _native.Projection(made.handle, bias)


def native_recurrent(mixer: RecurrentMixer, slot: int, only_follows: bool) -> _native.Part:
    """The mixer of a layer.

    Args:
        mixer: with its tensors.
        slot: of the layer, among those with a state.
        only_follows: whether its states go with the text and nothing is added to rows.
    """
    assert isinstance(mixer, WeightedShortConvolution | WeightedDeltaNet | WeightedMamba2), "there are no others"
    convolution = _convolution(mixer.convolution, slot, only_follows)
    if isinstance(mixer, WeightedDeltaNet):
        return _delta_net(mixer, convolution)
    if isinstance(mixer, WeightedMamba2):
        return _mamba2(mixer, convolution)
    return _native.short_convolution(
        convolution=convolution, inputs=native_projection(mixer.inputs), output=native_projection(mixer.output)
    )


def _delta_net(mixer: WeightedDeltaNet, convolution: _native.Convolution) -> _native.Part:
    parts, norm = mixer.parts, native_norm(mixer.norm)
    assert norm is not None
    return _native.delta_net(
        convolution=convolution,
        num_key_heads=parts.num_key_heads,
        memory=parts.state.memory,
        queries_keys_values=native_projection(mixer.queries_keys_values),
        gate=None if parts.fused else native_projection(mixer.gate),
        beta=native_projection(mixer.beta),
        decay=None if parts.fused else native_projection(mixer.decay),
        decay_bias=native_vector(mixer.decay_bias),
        rate=native_vector(mixer.rate),
        norm=norm,
        eps=float(EPS),
        output=native_projection(mixer.output),
    )


def _mamba2(mixer: WeightedMamba2, convolution: _native.Convolution) -> _native.Part:
    parts, norm = mixer.parts, native_norm(mixer.norm)
    assert norm is not None
    return _native.mamba2(
        convolution=convolution,
        num_groups=parts.num_groups,
        memory=parts.state.memory,
        activation=parts.activation,
        inputs=native_projection(mixer.inputs),
        step_bias=native_vector(mixer.step_bias),
        step_limits=parts.step_limits,
        rate=native_vector(mixer.rate),
        skip=native_vector(mixer.skip),
        norm=norm,
        norm_groups=parts.norm_groups,
        output=native_projection(mixer.output),
    )


def _convolution(convolution: WeightedConvolution, slot: int, only_follows: bool) -> _native.Convolution:
    bias = None if convolution.bias is None else native_vector(convolution.bias)
    return _native.Convolution(native_vector(convolution.taps), bias, slot, only_follows)
