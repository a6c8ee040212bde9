"""From layers to what the native decoder takes: the same parts, over weights that stay where they are."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar, overload

import numpy as np

from mxconv.arch.description import Temperature
from mxconv.arrays import F32
from mxconv.engine.attention import WeightedAttention
from mxconv.engine.experts import ExpertMatrices, WeightedMixture
from mxconv.engine.latent_attention import WeightedLatentAttention
from mxconv.engine.layer import Layer
from mxconv.engine.mlp import WeightedInput, WeightedMlp
from mxconv.engine.recurrent import EPS, RecurrentMixer, WeightedDeltaNet, WeightedMamba2, WeightedShortConvolution
from mxconv.engine.rope import Positions, RotaryEmbedding
from mxconv.engine.weights import DeferredMatrix, Projection, WeightedNorm
from mxconv.kernels import _native
from mxconv.kernels.matrix import Matrix
from mxconv.kernels.native_matrix import NativeMatrix

Kind = TypeVar("Kind", RotaryEmbedding, Temperature)


@overload
def native(part: Projection) -> _native.Projection: ...
@overload
def native(part: WeightedNorm) -> _native.Norm: ...
@overload
def native(part: F32) -> F32: ...
@overload
def native(part: None) -> None: ...
def native(part: Projection | WeightedNorm | F32 | None) -> _native.Projection | _native.Norm | F32 | None:
    """A matrix with its bias, a norm or a vector as kernels read it; None is none."""
    if isinstance(part, Projection):
        return _native.Projection(native_handle(part.matrix), native(part.bias))
    if isinstance(part, WeightedNorm):
        return _native.Norm(native(part.weight), native(part.bias), part.parts.eps, part.parts.kind == "layer")
    return None if part is None else np.require(part, np.float32, ["C", "A"])


def native_handle(matrix: Matrix) -> _native.Matrix:
    """A matrix alone."""
    made = matrix.matrix if isinstance(matrix, DeferredMatrix) else matrix
    assert isinstance(made, NativeMatrix), "made of native matrices"
    return made.handle


class NativeLayers:
    """The layers of a decoder, without the parts that a draft skips.

    What layers look up by a row's position is in tables, each kind once; a native layer names its place there.

    Args:
        layers: with their tensors.
        slots: of all layers, in a cache.
    """

    def __init__(self, layers: Sequence[Layer], slots: Sequence[int]) -> None:
        self._slots = slots
        self._rotations: list[RotaryEmbedding] = []
        self._temperatures: list[Temperature] = []
        self.handles = [self._layer(layer) for layer in layers]

    def tables(self, positions: Positions) -> tuple[list[tuple[F32, F32]], list[F32]]:
        """Cosines and sines, (num_rows, pairs) each, and factors of queries, (num_rows,), for the rows of a pass."""
        rotations = [positions.rotations(rotary) for rotary in self._rotations]
        factors = [positions.temperatures(temperature)[:, 0, 0] for temperature in self._temperatures]
        return [(cosines[:, 0], sines[:, 0]) for cosines, sines in rotations], factors

    def _layer(self, layer: Layer) -> _native.Layer:
        branches = []
        if isinstance(layer.mixer, RecurrentMixer) or not layer.skips_attention:
            before, after = native(layer.before_mixer), native(layer.after_mixer)
            branches.append(_native.Branch(self._mixer(layer), before, False, after, layer.parts.residual_multiplier))
        if layer.mlp is not None and not layer.skips_mlp:
            branches += _mlp_branches(layer, layer.mlp)
            if (own := layer.layer_input) is not None:
                branches.append(_native.Branch(_layer_input(own, layer.index), None, False, native(own.norm), 1.0))
        return _native.Layer(branches, 1.0 if layer.scalar is None else float(layer.scalar[0]))

    def _mixer(self, layer: Layer) -> _native.Part:
        mixer, slot = layer.mixer, self._slots[layer.index]
        if isinstance(mixer, RecurrentMixer):
            return _recurrent(mixer, slot, only_follows=layer.skips_attention)
        is_chunked = isinstance(mixer, WeightedAttention) and mixer.parts.is_chunked
        sinks = layer.sink_window
        sight = _native.Sight(
            mixer.parts.window or 0, sinks.sink if sinks else 0, sinks.window if sinks else 0, is_chunked
        )
        if isinstance(mixer, WeightedAttention):
            return self._attention(mixer, sight, slot)
        return _native.latent_attention(
            layer=slot,
            query_down=native(mixer.query_down),
            query_norm=native(mixer.query_norm),
            query=native(mixer.query),
            down=native(mixer.down),
            latent_norm=native(mixer.latent_norm),
            key_up=native(mixer.key_up),
            value_up=native(mixer.value_up),
            output=native(mixer.output),
            scale=mixer.parts.scale,
            sight=sight,
            rotation=self._rotation(mixer),
        )

    def _attention(self, attention: WeightedAttention, sight: _native.Sight, slot: int) -> _native.Part:
        parts, has_query_or_key_norm = attention.parts, attention.query_norm or attention.key_norm
        return _native.attention(
            layer=slot,
            source=slot if parts.source is None else self._slots[parts.source],
            num_heads=parts.num_heads,
            num_key_value_heads=parts.num_key_value_heads,
            head_dim=parts.head_dim,
            query=native(attention.query),
            key=None if parts.fused else native(attention.key),
            value=None if parts.fused else native(attention.value),
            output=native(attention.output),
            fused=parts.fused,
            scale=parts.scale,
            sight=sight,
            norms=_native.HeadNorms(
                native(attention.query_norm),
                native(attention.key_norm),
                native(attention.value_norm),
                parts.norm_span == "row" and has_query_or_key_norm is not None,
                parts.norms_rotated,
                parts.clip or 0.0,
            ),
            rotation=self._rotation(attention),
            temperature=-1 if parts.temperature is None else _place(self._temperatures, parts.temperature),
            logit_cap=parts.logit_cap or 0.0,
            is_gated=parts.is_gated,
            sinks=native(attention.sinks),
        )

    def _rotation(self, attention: WeightedAttention | WeightedLatentAttention) -> _native.HeadRotation:
        """The place of a layer's rotations."""
        rotary, rope = attention.rotary, attention.parts.rope
        if rotary is None or rope is None:
            return _native.HeadRotation(-1, 0, False)
        return _native.HeadRotation(_place(self._rotations, rotary), len(rotary.frequencies), rope.is_interleaved)


def _place(kinds: list[Kind], kind: Kind) -> int:
    if kind not in kinds:
        kinds.append(kind)
    return kinds.index(kind)


def _mlp_branches(layer: Layer, mlp: WeightedMlp | WeightedMixture) -> list[_native.Branch]:
    """An MLP; or experts, and beside them what all rows go through, an MLP that takes in the same rows."""
    before, after, multiplier = native(layer.before_mlp), native(layer.after_mlp), layer.parts.residual_multiplier
    if isinstance(mlp, WeightedMlp):
        return [_native.Branch(_mlp(mlp), before, layer.parts.is_parallel, after, multiplier)]
    taken = native(mlp.before_shared) or before
    made: list[tuple[_native.Part, _native.Norm | None]] = []
    if mlp.num_chosen:
        made.append((_mixture(mlp, layer.before_mlp), native(mlp.after_experts)))
    if mlp.shared is not None:
        made.append((_mlp(mlp.shared, mlp.shared_gate), native(mlp.after_shared)))
    if made and after is not None:
        return [_native.Branch(_native.joined(made), taken, False, after, multiplier)]
    return [_native.Branch(part, taken, place > 0, norm, multiplier) for place, (part, norm) in enumerate(made)]


def _mlp(mlp: WeightedMlp, row_gate: Projection | None = None) -> _native.Part:
    """An MLP; `row_gate` is one whose sigmoid multiplies what it makes of a row."""
    return _native.mlp(
        activation=mlp.parts.activation,
        gate=native(mlp.gate),
        up=native(mlp.up),
        down=native(mlp.down),
        row_gate=native(row_gate),
        is_fused=mlp.parts.fused,
        layer_input=-1,
    )


def _layer_input(own: WeightedInput, index: int) -> _native.Part:
    """Embeddings of the layer's own: an MLP in which they take the place of what would multiply the gate."""
    return _native.mlp(
        activation=own.parts.activation,
        gate=native(own.gate),
        up=None,
        down=native(own.projection),
        row_gate=None,
        is_fused=False,
        layer_input=index,
    )


def _mixture(mixture: WeightedMixture, before: WeightedNorm | None) -> _native.Part:
    """Handles of every expert, after the layer's norm or one of their own; a pass reads those that rows chose."""
    parts, router = mixture.parts.experts, mixture.router
    norm, routed = mixture.before_experts or before, router.norm or before
    is_apart = routed is not norm or router.input_weights is not None
    if routed is not None and router.input_weights is not None:
        factors = router.input_weights * np.float32(router.parts.input_multiplier)
        bias = None if routed.bias is None else routed.bias * factors
        routed = replace(routed, weight=routed.weight * factors, bias=bias)
    return _native.mixture(
        activation=parts.activation,
        clamped=None if parts.clamped is None else (parts.clamped.slope, parts.clamped.limit),
        is_interleaved=parts.is_interleaved,
        scales_input=mixture.parts.scales_input,
        norm=native(norm),
        router_norm=native(routed) if is_apart else None,
        is_routed_apart=is_apart,
        routing=_native.Routing(
            router=native(router.projection),
            num_chosen=mixture.num_chosen,
            score=router.parts.score,
            is_normalized=router.parts.is_normalized,
            correction=native(router.correction),
            groups=(router.parts.num_groups, router.parts.num_chosen_groups),
            multiplier=router.parts.multiplier,
            multipliers=native(router.multipliers),
        ),
        experts=[_expert(mixture.experts, number) for number in range(router.parts.num_experts)],
    )


def _expert(
    experts: ExpertMatrices, number: int
) -> tuple[_native.Projection, _native.Projection | None, _native.Projection]:
    def projection(matrix: Matrix, biases: Matrix | None = None) -> _native.Projection:
        return native(Projection(matrix, None if biases is None else biases.rows(np.array([number]))[0]))

    down = projection(experts.down(number), experts.down_bias)
    if experts.both is not None:
        return projection(experts.both(number), experts.both_bias), None, down
    return projection(experts.gate(number)), projection(experts.up(number)), down


def _recurrent(mixer: RecurrentMixer, slot: int, only_follows: bool) -> _native.Part:
    """A mixer with a state.

    Args:
        mixer: with its tensors.
        slot: of the layer, among those with a state.
        only_follows: whether its states go with the text and nothing is added to rows.
    """
    assert isinstance(mixer, WeightedShortConvolution | WeightedDeltaNet | WeightedMamba2), "there are no others"
    taps, bias = native(mixer.convolution.taps), native(mixer.convolution.bias)
    convolution, output = _native.Convolution(taps, bias, slot, only_follows), native(mixer.output)
    if isinstance(mixer, WeightedShortConvolution):
        return _native.short_convolution(convolution=convolution, inputs=native(mixer.inputs), output=output)
    if isinstance(mixer, WeightedMamba2):
        return _native.mamba2(
            convolution=convolution,
            num_groups=mixer.parts.num_groups,
            memory=mixer.parts.state.memory,
            activation=mixer.parts.activation,
            inputs=native(mixer.inputs),
            step_bias=native(mixer.step_bias),
            step_limits=mixer.parts.step_limits,
            rate=native(mixer.rate),
            skip=native(mixer.skip),
            norm=native(mixer.norm),
            norm_groups=mixer.parts.norm_groups,
            output=output,
        )
    return _native.delta_net(
        convolution=convolution,
        num_key_heads=mixer.parts.num_key_heads,
        memory=mixer.parts.state.memory,
        queries_keys_values=native(mixer.queries_keys_values),
        gate=None if mixer.parts.fused else native(mixer.gate),
        beta=native(mixer.beta),
        decay=None if mixer.parts.fused else native(mixer.decay),
        decay_bias=native(mixer.decay_bias),
        rate=native(mixer.rate),
        norm=native(mixer.norm),
        eps=float(EPS),
        output=output,
    )
