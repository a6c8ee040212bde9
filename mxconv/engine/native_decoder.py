"""The decoder whose whole forward pass is one native call; the NumPy one remains what it is compared with."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from mxconv.arch.config import ModelConfig
from mxconv.arch.description import Temperature
from mxconv.arrays import F32
from mxconv.engine.attention import WeightedAttention
from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.engine.experts import ExpertMatrices, WeightedMixture
from mxconv.engine.forest import SequenceRows
from mxconv.engine.latent_attention import WeightedLatentAttention
from mxconv.engine.layer import Layer
from mxconv.engine.mlp import WeightedInput, WeightedMlp
from mxconv.engine.recurrent import EPS, RecurrentMixer, WeightedDeltaNet, WeightedMamba2, WeightedShortConvolution
from mxconv.engine.rope import Positions, RotaryEmbedding
from mxconv.engine.screened_head import ScreenedHead
from mxconv.engine.state_cache import StateCache
from mxconv.engine.states import StateRoom
from mxconv.engine.tree import GrownTree, TreeLimits
from mxconv.engine.weights import DeferredMatrix, ModelWeights, Projection, WeightedNorm
from mxconv.kernels import _native
from mxconv.kernels.matrix import Matrix
from mxconv.kernels.native_matrix import NativeMatrix

Kind = TypeVar("Kind", RotaryEmbedding, Temperature)


class NativeDecoder(Decoder):
    """The same model, checks and row promise as `Decoder`, by the native kernels.

    Its bits are not those of NumPy: they are a promise per machine, instruction set and build. BF16 weights multiply
    activations rounded to BF16, as such models were trained to. Every matrix but those that are looked up is a
    `NativeMatrix`; `engine` says which kernels run, on how many threads.
    """

    def __init__(self, config: ModelConfig, weights: ModelWeights, name: str, engine: _native.Engine) -> None:
        self.engine = engine
        super().__init__(config, weights, name)

    def _bind(self) -> None:
        config = self.config
        # what layers look up by a row's position is in tables, each kind once; a native layer names its place there
        self._rotations: list[RotaryEmbedding] = []
        self._temperatures: list[Temperature] = []
        self.handle = _native.Decoder(
            self.engine,
            [self._layer(layer) for layer in self.layers],
            _native_of(self.norm),
            _handle(self.head.head if isinstance(self.head, ScreenedHead) else self.head),
            config.logit_multiplier,
            config.logit_cap or 0.0,
            (len(config.attentions), config.num_key_value_heads, config.head_dim),
            _screen(self.head),
        )

    def _evaluate(
        self,
        ids: NDArray[np.intp],
        sequences: Sequence[SequenceRows],
        positions: Positions,
        rooms: Sequence[StateRoom | None],
    ) -> F32:
        x, own = self.first_inputs(ids, positions)
        logits = np.empty((sum(rows.num_wanted for rows in sequences), self.head.shape[0]), np.float32)
        tokens = [_sequence_tokens(rows, room) for rows, room in zip(sequences, rooms, strict=True)]
        self.handle.forward(x, **self._tables(positions), layer_inputs=own, logits=logits, sequences=tokens)
        return logits

    def grow(self, token_ids: Sequence[int], cache: KVCache, vocab_size: int, limits: TreeLimits) -> GrownTree | None:
        embedding, others = self.embedding, (self.position_embedding, self.layer_inputs, self.tokens, cache.states)
        if not (isinstance(embedding, NativeMatrix) and embedding.has_16_bits) or any(x is not None for x in others):
            return None
        ids = (rows := SequenceRows(token_ids, cache, None, 1)).checked_ids(self.config, self.name)
        cache.reserve(len(ids) + limits.most_rows)
        start = cache.length + cache.num_left_out
        positions = Positions(range(start, start + len(ids) + limits.most_depth - 1))
        grown = self.handle.grow(
            token_ids=ids.tolist(),
            embedding=_handle(embedding),
            multiplier=self.config.embedding_multiplier,
            **self._tables(positions),
            sequence=_sequence_tokens(rows, None),
            vocab_size=vocab_size,
            limits=_native.TreeLimits(**vars(limits)),
        )
        cache.advance(len(ids) + len(grown.rows))
        return GrownTree(**{field.name: getattr(grown, field.name) for field in fields(GrownTree)})

    def _tables(self, positions: Positions) -> dict[str, Any]:
        """What layers look up by positions."""
        rotations = [positions.rotations(rotary) for rotary in self._rotations]
        return {
            "rotations": [(cosines[:, 0], sines[:, 0]) for cosines, sines in rotations],
            "temperatures": [positions.temperatures(temperature)[:, 0, 0] for temperature in self._temperatures],
        }

    def _layer(self, layer: Layer) -> _native.Layer:
        """A layer without the parts that a draft skips, over weights that stay where they are."""
        branches = []
        if isinstance(layer.mixer, RecurrentMixer) or not layer.skips_attention:
            before, after = _native_of(layer.before_mixer), _native_of(layer.after_mixer)
            branches.append(_native.Branch(self._mixer(layer), before, False, after, layer.parts.residual_multiplier))
        if layer.mlp is not None and not layer.skips_mlp:
            branches += _mlp_branches(layer, layer.mlp)
            if (own := layer.layer_input) is not None:
                made = _layer_input(own, layer.index)
                branches.append(_native.Branch(made, None, False, _native_of(own.norm), 1.0))
        return _native.Layer(branches, 1.0 if layer.scalar is None else float(layer.scalar[0]))

    def _mixer(self, layer: Layer) -> _native.Part:
        mixer, slot, sinks = layer.mixer, self.config.slots[layer.index], layer.sink_window
        if isinstance(mixer, RecurrentMixer):
            return _recurrent(mixer, slot, only_follows=layer.skips_attention)
        is_chunked = isinstance(mixer, WeightedAttention) and mixer.parts.is_chunked
        sink, window = (sinks.sink, sinks.window) if sinks else (0, 0)
        sight = _native.Sight(mixer.parts.window or 0, sink, window, is_chunked)
        if isinstance(mixer, WeightedAttention):
            return self._attention(mixer, sight, slot)
        names = "query_down", "query_norm", "query", "down", "latent_norm", "key_up", "value_up", "output"
        return _native.latent_attention(
            layer=slot, **_natives(mixer, *names), scale=mixer.parts.scale, sight=sight, rotation=self._rotation(mixer)
        )

    def _attention(self, attention: WeightedAttention, sight: _native.Sight, slot: int) -> _native.Part:
        parts, has_query_or_key_norm = attention.parts, attention.query_norm or attention.key_norm
        assert not (parts.is_gated and (parts.fused or parts.norm_span == "row")), "no family has both"
        return _native.attention(
            layer=slot,
            source=slot if parts.source is None else self.config.slots[parts.source],
            num_heads=parts.num_heads,
            num_key_value_heads=parts.num_key_value_heads,
            head_dim=parts.head_dim,
            **_natives(attention, "query", "output", "sinks"),
            key=None if parts.fused else _native_of(attention.key),
            value=None if parts.fused else _native_of(attention.value),
            fused=parts.fused,
            scale=parts.scale,
            sight=sight,
            norms=_native.HeadNorms(
                _native_of(attention.query_norm),
                _native_of(attention.key_norm),
                _native_of(attention.value_norm),
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


def _native_of(part: Projection | WeightedNorm | F32 | None) -> Any:
    """A matrix with its bias, a norm or a vector as kernels read it; None is none."""
    if isinstance(part, Projection):
        return _native.Projection(_handle(part.matrix), _native_of(part.bias))
    if isinstance(part, WeightedNorm):
        return _native.Norm(_native_of(part.weight), _native_of(part.bias), part.parts.eps, part.parts.kind == "layer")
    return None if part is None else np.require(part, np.float32, ["C", "A"])


def _screen(head: Matrix) -> _native.HeadScreen | None:
    """What chooses the rows of a head that are read."""
    if not isinstance(head, ScreenedHead):
        return None
    projection, scores = (_native.Projection(_handle(matrix), None) for matrix in (head.projection, head.scores))
    return _native.HeadScreen(projection, scores, head.num_candidates)


def _natives(part: object, *names: str) -> dict[str, Any]:
    """Attributes of a part by their names, which native parts share, as kernels read them."""
    return {name: _native_of(getattr(part, name)) for name in names}


def _handle(matrix: Matrix) -> _native.Matrix:
    """A matrix alone."""
    made = matrix.matrix if isinstance(matrix, DeferredMatrix) else matrix
    assert isinstance(made, NativeMatrix), "made of native matrices"
    return made.handle


def _mlp_branches(layer: Layer, mlp: WeightedMlp | WeightedMixture) -> list[_native.Branch]:
    """An MLP; or experts, and beside them what all rows go through, an MLP that takes in the same rows."""
    before, after = _native_of(layer.before_mlp), _native_of(layer.after_mlp)
    multiplier = layer.parts.residual_multiplier
    if isinstance(mlp, WeightedMlp):
        return [_native.Branch(_mlp(mlp), before, layer.parts.is_parallel, after, multiplier)]
    # no family has others, and kernels apply norms and gates of mixtures in these orders alone
    assert not layer.parts.is_parallel and not (mlp.shared_gate and mlp.before_shared)
    assert before is None or not (mlp.before_experts or mlp.before_shared or mlp.router.norm)
    assert before is not None or mlp.router.norm is not None or mlp.router.input_weights is None
    taken = _native_of(mlp.before_shared) or before
    made: list[tuple[_native.Part, _native.Norm | None]] = []
    if mlp.num_chosen:
        made.append((_mixture(mlp, layer.before_mlp), _native_of(mlp.after_experts)))
    if mlp.shared is not None:
        made.append((_mlp(mlp.shared, mlp.shared_gate), _native_of(mlp.after_shared)))
    if made and after is not None:
        return [_native.Branch(_native.joined(made), taken, False, after, multiplier)]
    return [_native.Branch(part, taken, place > 0, norm, multiplier) for place, (part, norm) in enumerate(made)]


def _mlp(mlp: WeightedMlp, row_gate: Projection | None = None) -> _native.Part:
    """An MLP; `row_gate` is one whose sigmoid multiplies what it makes of a row."""
    return _native.mlp(
        activation=mlp.parts.activation,
        **_natives(mlp, "gate", "up", "down"),
        row_gate=_native_of(row_gate),
        is_fused=mlp.parts.fused,
        layer_input=-1,
    )


def _layer_input(own: WeightedInput, index: int) -> _native.Part:
    """Embeddings of the layer's own: an MLP in which they take the place of what would multiply the gate."""
    return _native.mlp(
        activation=own.parts.activation,
        gate=_native_of(own.gate),
        up=None,
        down=_native_of(own.projection),
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
        norm=_native_of(norm),
        router_norm=_native_of(routed) if is_apart else None,
        is_routed_apart=is_apart,
        routing=_native.Routing(
            router=_native_of(router.projection),
            num_chosen=mixture.num_chosen,
            score=routing.score,
            is_normalized=routing.is_normalized,
            **_natives(router, "correction", "multipliers"),
            groups=(routing.num_groups, routing.num_chosen_groups),
            multiplier=routing.multiplier,
        ),
        experts=[_expert(mixture.experts, number) for number in range(routing.num_experts)],
    )


def _expert(
    experts: ExpertMatrices, number: int
) -> tuple[_native.Projection, _native.Projection | None, _native.Projection]:
    def projection(matrix: Matrix, biases: Matrix | None = None) -> Any:
        return _native_of(Projection(matrix, None if biases is None else biases.rows(np.array([number]))[0]))

    down = projection(experts.down(number), experts.down_bias)
    if experts.both is not None:
        return projection(experts.both(number), experts.both_bias), None, down
    return projection(experts.gate(number)), projection(experts.up(number)), down


def _recurrent(mixer: RecurrentMixer, slot: int, only_follows: bool) -> _native.Part:
    """A mixer with a state; one that only follows adds nothing to rows, and its states go with the text."""
    assert isinstance(mixer, WeightedShortConvolution | WeightedDeltaNet | WeightedMamba2), "there are no others"
    own = mixer.convolution
    convolution = _native.Convolution(_native_of(own.taps), _native_of(own.bias), slot, only_follows)
    if isinstance(mixer, WeightedShortConvolution):
        return _native.short_convolution(convolution=convolution, **_natives(mixer, "inputs", "output"))
    if isinstance(mixer, WeightedMamba2):
        return _native.mamba2(
            convolution=convolution,
            num_groups=mixer.parts.num_groups,
            memory=mixer.parts.state.memory,
            activation=mixer.parts.activation,
            step_limits=mixer.parts.step_limits,
            norm_groups=mixer.parts.norm_groups,
            **_natives(mixer, "inputs", "step_bias", "rate", "skip", "norm", "output"),
        )
    return _native.delta_net(
        convolution=convolution,
        num_key_heads=mixer.parts.num_key_heads,
        memory=mixer.parts.state.memory,
        gate=None if mixer.parts.fused else _native_of(mixer.gate),
        decay=None if mixer.parts.fused else _native_of(mixer.decay),
        eps=float(EPS),
        **_natives(mixer, "queries_keys_values", "beta", "decay_bias", "rate", "norm", "output"),
    )


def _sequence_tokens(rows: SequenceRows, room: StateRoom | None) -> _native.SequenceTokens:
    cache, tree = rows.cache, rows.branches
    return _native.SequenceTokens(
        _native.Pages(cache.dtype, cache.pool.slabs.arrays, cache.numbers),
        length=cache.length,
        num_tokens=rows.num_rows,
        num_logits=rows.num_wanted,
        masks=None if tree.is_chain else tree.masks[tree.num_cached :],
        mask_start=0 if tree.is_chain else cache.length - tree.num_cached,
        stages=[] if room is None else room.stages,
        states=None if room is None else room.values,
        num_left_out=cache.num_left_out,
        walk=None if cache.states is None else _walk(cache.states),
    )


def _walk(states: StateCache) -> _native.Walk:
    """The pass that has begun; the native decoder follows it and writes where `StateCache.run` would."""
    walk = states.of_this_pass
    return _native.Walk(
        windows=states.windows,
        memories=states.memories,
        inputs=(states.origin, states.inputs),
        kept=states.kept,
        source=walk.source,
        first=walk.first,
        stop=walk.stop,
        length=walk.length,
        saves=list(walk.saves),
        branches=list(walk.branches),
    )
