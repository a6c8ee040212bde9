"""Layers as the native kernels see them, over weights that stay where they are."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from mxconv.arch.config import ModelConfig
from mxconv.arch.description import Temperature
from mxconv.arrays import F32
from mxconv.engine.attention import WeightedAttention, WeightedLatentAttention
from mxconv.engine.attention_window import RetrievedPages
from mxconv.engine.layer import Layer
from mxconv.engine.mlp import ExpertMatrices, WeightedInput, WeightedMixture, WeightedMlp
from mxconv.engine.recurrent import EPS, RecurrentMixer, WeightedDeltaNet, WeightedMamba2, WeightedShortConvolution
from mxconv.engine.rope import Positions, RotaryEmbedding
from mxconv.engine.weights import DeferredMatrix, Projection, WeightedNorm
from mxconv.kernels import _native
from mxconv.kernels.matrix import Matrix
from mxconv.kernels.native_matrix import NativeMatrix

Kind = TypeVar("Kind", RotaryEmbedding, Temperature)


class NativeParts:
    """Makes the layers of a model, and the tables of each pass that they look positions up in.

    What layers look up by a row's position is in tables, each kind once; a native layer names its place there.
    """

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self._rotations: list[RotaryEmbedding] = []
        self._temperatures: list[Temperature] = []

    def tables(self, positions: Positions) -> dict[str, Any]:
        """What layers look up by positions."""
        rotations = [positions.rotations(rotary) for rotary in self._rotations]
        return {
            "rotations": [(cosines[:, 0], sines[:, 0]) for cosines, sines in rotations],
            "temperatures": [positions.temperatures(temperature)[:, 0, 0] for temperature in self._temperatures],
        }

    def layer(self, layer: Layer, paired: Callable[[_native.Part], _native.Part] | None = None) -> _native.Layer:
        """A layer; `paired` makes its mixer one that norms what it takes in."""
        before, after = native_of(layer.before_mixer), native_of(layer.after_mixer)
        mixer = self._mixer(layer)
        if paired is not None:
            mixer, before = paired(mixer), None
        branches = [_native.Branch(mixer, before, False, after, layer.parts.residual_multiplier)]
        if layer.mlp is not None:
            branches += _mlp_branches(layer, layer.mlp)
            if (own := layer.layer_input) is not None:
                made = _layer_input(own, layer.index)
                branches.append(_native.Branch(made, None, False, native_of(own.norm), 1.0))
        return _native.Layer(branches, 1.0 if layer.scalar is None else float(layer.scalar[0]))

    def _mixer(self, layer: Layer) -> _native.Part:
        mixer, slot, pattern = layer.mixer, self.config.slots[layer.index], layer.pattern
        if isinstance(mixer, RecurrentMixer):
            return _recurrent(mixer, slot)
        is_chunked = isinstance(mixer, WeightedAttention) and mixer.parts.is_chunked
        sink, window = (pattern.sink, pattern.window) if pattern else (0, 0)
        pages = pattern.pages if isinstance(pattern, RetrievedPages) else 0
        seen = _native.AttentionPattern(mixer.parts.window or 0, sink, window, is_chunked, pages)
        if isinstance(mixer, WeightedAttention):
            return self._attention(mixer, seen, slot)
        names = "query_down", "query_norm", "query", "down", "latent_norm", "key_up", "value_up", "output"
        return _native.latent_attention(
            layer=slot, **natives(mixer, *names), scale=mixer.parts.scale, pattern=seen, rotation=self._rotation(mixer)
        )

    def _attention(self, attention: WeightedAttention, seen: _native.AttentionPattern, slot: int) -> _native.Part:
        parts, has_query_or_key_norm = attention.parts, attention.query_norm or attention.key_norm
        assert not (parts.is_gated and (parts.fused or parts.norm_span == "row")), "no family has both"
        return _native.attention(
            layer=slot,
            source=slot if parts.source is None else self.config.slots[parts.source],
            num_heads=parts.num_heads,
            num_key_value_heads=parts.num_key_value_heads,
            head_dim=parts.head_dim,
            **natives(attention, "query", "output", "sinks"),
            key=None if parts.fused else native_of(attention.key),
            value=None if parts.fused else native_of(attention.value),
            fused=parts.fused,
            scale=parts.scale,
            pattern=seen,
            norms=_native.HeadNorms(
                native_of(attention.query_norm),
                native_of(attention.key_norm),
                native_of(attention.value_norm),
                parts.norm_span == "row" and has_query_or_key_norm is not None,
                parts.norms_rotated,
                parts.clip or 0.0,
            ),
            rotation=self._rotation(attention),
            temperature=-1 if parts.temperature is None else _place(self._temperatures, parts.temperature),
            logit_cap=parts.logit_cap or 0.0,
            is_gated=parts.is_gated,
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


def native_of(part: Projection | WeightedNorm | F32 | None) -> Any:
    """A matrix with its bias, a norm or a vector as kernels read it; None is none."""
    if isinstance(part, Projection):
        return _native.Projection(handle(part.matrix), native_of(part.bias))
    if isinstance(part, WeightedNorm):
        return _native.Norm(native_of(part.weight), native_of(part.bias), part.parts.eps, part.parts.kind == "layer")
    return None if part is None else np.require(part, np.float32, ["C", "A"])


def natives(part: object, *names: str) -> dict[str, Any]:
    """Attributes of a part by their names, which native parts share, as kernels read them."""
    return {name: native_of(getattr(part, name)) for name in names}


def handle(matrix: Matrix) -> _native.Matrix:
    """A matrix alone."""
    made = matrix.matrix if isinstance(matrix, DeferredMatrix) else matrix
    assert isinstance(made, NativeMatrix), "made of native matrices"
    return made.handle


def _mlp_branches(layer: Layer, mlp: WeightedMlp | WeightedMixture) -> list[_native.Branch]:
    """An MLP; or experts, and beside them what all rows go through, an MLP that takes in the same rows."""
    before, after = native_of(layer.before_mlp), native_of(layer.after_mlp)
    multiplier = layer.parts.residual_multiplier
    if isinstance(mlp, WeightedMlp):
        return [_native.Branch(_mlp(mlp), before, layer.parts.is_parallel, after, multiplier)]
    # no family has others, and kernels apply norms and gates of mixtures in these orders alone
    assert not layer.parts.is_parallel and not (mlp.shared_gate and mlp.before_shared)
    assert before is None or not (mlp.before_experts or mlp.before_shared or mlp.router.norm)
    assert before is not None or mlp.router.norm is not None or mlp.router.input_weights is None
    taken = native_of(mlp.before_shared) or before
    made: list[tuple[_native.Part, _native.Norm | None]] = []
    if mlp.num_chosen:
        made.append((_mixture(mlp, layer.before_mlp), native_of(mlp.after_experts)))
    if mlp.shared is not None:
        made.append((_mlp(mlp.shared, mlp.shared_gate), native_of(mlp.after_shared)))
    if made and after is not None:
        return [_native.Branch(_native.joined(made), taken, False, after, multiplier)]
    return [_native.Branch(part, taken, place > 0, norm, multiplier) for place, (part, norm) in enumerate(made)]


def _mlp(mlp: WeightedMlp, row_gate: Projection | None = None) -> _native.Part:
    """An MLP; `row_gate` is one whose sigmoid multiplies what it makes of a row."""
    return _native.mlp(
        activation=mlp.parts.activation,
        **natives(mlp, "gate", "up", "down"),
        row_gate=native_of(row_gate),
        is_fused=mlp.parts.fused,
        layer_input=-1,
    )


def _layer_input(own: WeightedInput, index: int) -> _native.Part:
    """Embeddings of the layer's own: an MLP in which they take the place of what would multiply the gate."""
    return _native.mlp(
        activation=own.parts.activation,
        gate=native_of(own.gate),
        up=None,
        down=native_of(own.projection),
        row_gate=None,
        is_fused=False,
        layer_input=index,
    )


def _mixture(mixture: WeightedMixture, before: WeightedNorm | None) -> _native.Part:
    """Handles of every expert, after the layer's norm or one of their own; a pass reads those that rows chose."""
    parts, router, routing = mixture.parts.experts, mixture.router, mixture.router.parts
    norm, routed = mixture.before_experts or before, router.norm or before
    is_apart = routed is not norm or router.input_weights is not None
    if routed is not None and router.input_weights is not None:
        factors = router.input_weights * np.float32(routing.input_multiplier)
        bias = None if routed.bias is None else routed.bias * factors
        routed = replace(routed, weight=routed.weight * factors, bias=bias)
    return _native.mixture(
        activation=parts.activation,
        clamped=None if parts.clamped is None else (parts.clamped.slope, parts.clamped.limit),
        is_interleaved=parts.is_interleaved,
        scales_input=mixture.parts.scales_input,
        norm=native_of(norm),
        router_norm=native_of(routed) if is_apart else None,
        is_routed_apart=is_apart,
        routing=_native.Routing(
            router=native_of(router.projection),
            num_chosen=mixture.num_chosen,
            score=routing.score,
            is_normalized=routing.is_normalized,
            **natives(router, "correction", "multipliers"),
            groups=(routing.num_groups, routing.num_chosen_groups),
            multiplier=routing.multiplier,
        ),
        experts=[_expert(mixture.experts, number) for number in range(routing.num_experts)],
    )


def _expert(
    experts: ExpertMatrices, number: int
) -> tuple[_native.Projection, _native.Projection | None, _native.Projection]:
    def projection(matrix: Matrix, biases: Matrix | None = None) -> Any:
        return native_of(Projection(matrix, None if biases is None else biases.rows(np.array([number]))[0]))

    down = projection(experts.down(number), experts.down_bias)
    if experts.both is not None:
        return projection(experts.both(number), experts.both_bias), None, down
    return projection(experts.gate(number)), projection(experts.up(number)), down


def _recurrent(mixer: RecurrentMixer, slot: int) -> _native.Part:
    """A mixer with a state."""
    assert isinstance(mixer, WeightedShortConvolution | WeightedDeltaNet | WeightedMamba2), "there are no others"
    own = mixer.convolution
    convolution = _native.Convolution(native_of(own.taps), native_of(own.bias), slot)
    if isinstance(mixer, WeightedShortConvolution):
        return _native.short_convolution(convolution=convolution, **natives(mixer, "inputs", "output"))
    if isinstance(mixer, WeightedMamba2):
        return _native.mamba2(
            convolution=convolution,
            num_groups=mixer.parts.num_groups,
            memory=mixer.parts.state.memory,
            activation=mixer.parts.activation,
            step_limits=mixer.parts.step_limits,
            norm_groups=mixer.parts.norm_groups,
            **natives(mixer, "inputs", "step_bias", "rate", "skip", "norm", "output"),
        )
    return _native.delta_net(
        convolution=convolution,
        num_key_heads=mixer.parts.num_key_heads,
        memory=mixer.parts.state.memory,
        gate=None if mixer.parts.fused else native_of(mixer.gate),
        decay=None if mixer.parts.fused else native_of(mixer.decay),
        eps=float(EPS),
        **natives(mixer, "queries_keys_values", "beta", "decay_bias", "rate", "norm", "output"),
    )
