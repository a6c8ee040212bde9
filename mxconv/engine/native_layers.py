"""From layers to what the native decoder takes: the same parts, over weights that stay where they are."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from mxconv.arch.description import Temperature
from mxconv.arrays import F32
from mxconv.engine.latent_mixer import WeightedLatentAttention
from mxconv.engine.layer import Layer
from mxconv.engine.layer_input import WeightedInput
from mxconv.engine.mixer import WeightedAttention
from mxconv.engine.mlp import WeightedMlp
from mxconv.engine.native_latent import native_latent
from mxconv.engine.native_mixture import native_mixture
from mxconv.engine.native_recurrent import native_recurrent
from mxconv.engine.native_vectors import native_norm, native_projection, native_vector
from mxconv.engine.positions import Positions
from mxconv.engine.projection import Projection
from mxconv.engine.recurrent.mixer import RecurrentMixer
from mxconv.engine.rope import RotaryEmbedding
from mxconv.engine.sink_window import SinkWindow
from mxconv.kernels import _native


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
