"""The decoder whose whole forward pass is one native call; the NumPy one remains what it is compared with."""

from collections.abc import Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray

from mxconv.arrays import F32
from mxconv.kernels import _native
from mxconv.kernels.native_matrix import NativeMatrix
from mxconv.model.config import ModelConfig
from mxconv.model.decoder import Decoder
from mxconv.model.forest import SequenceRows
from mxconv.model.layer import Layer
from mxconv.model.mixer import WeightedAttention
from mxconv.model.mlp import WeightedMlp
from mxconv.model.native_parts import missing_parts
from mxconv.model.norm import WeightedNorm
from mxconv.model.positions import Positions
from mxconv.model.projection import Projection
from mxconv.model.rope import RotaryEmbedding
from mxconv.model.sink_window import SinkWindow
from mxconv.model.skipped import Skipped
from mxconv.model.states import StateRoom
from mxconv.model.weights import Weights


class NativeDecoder(Decoder):
    """The same model, checks and row promise as `Decoder`, by the native kernels.

    Its bits are not those of NumPy: they are a promise per machine, instruction set and build. BF16 weights multiply
    activations rounded to BF16, as such models were trained to.

    Args:
        config: the description, of parts that `missing_parts` does not name.
        weights: every matrix but the embedding is a `NativeMatrix`.
        name: what messages call the model.
        engine: which kernels, how many threads.
    """

    def __init__(self, config: ModelConfig, weights: Weights, name: str, engine: _native.Engine) -> None:
        assert not missing_parts(config), "the NumPy decoder runs what this one lacks"
        super().__init__(config, weights, name)
        self.engine = engine
        self.rotary = RotaryEmbedding(config.rope, config.head_dim)  # of all layers
        self.handle = self._make_handle()

    def variant(
        self,
        skipped: Skipped | None = None,
        sink_window: SinkWindow | None = None,
        name: str | None = None,
        num_experts: int | None = None,
    ) -> Self:
        made = super().variant(skipped, sink_window, name, num_experts)
        made.handle = made._make_handle()
        return made

    def _make_handle(self) -> _native.Decoder:
        """The pass through `layers`, over weights that stay where they are."""
        handle = _native.Decoder(
            self.engine,
            self.config.num_attention_heads,
            self.config.num_key_value_heads,
            self.config.head_dim,
            self.config.rms_norm_eps,
            _vector(self.norm.weight),
            _handle(self.output),
        )
        for layer in self.layers:
            self._add(layer, handle)
        return handle

    def _add(self, layer: Layer, handle: _native.Decoder) -> None:
        attention, mlp = layer.attention, layer.mlp
        assert isinstance(mlp, WeightedMlp) and isinstance(attention, WeightedAttention), "no other parts are native"
        handle.add_layer(
            skips_attention=layer.skips_attention,
            skips_mlp=layer.skips_mlp,
            sink=layer.sink_window.sink if layer.sink_window else 0,
            recent=layer.sink_window.window if layer.sink_window else 0,
            window=layer.parts.mixer.window or 0,
            input_norm=_norm(layer.before_mixer),
            mlp_norm=_norm(layer.before_mlp),
            query_norm=None if attention.query_norm is None else _norm(attention.query_norm),
            key_norm=None if attention.key_norm is None else _norm(attention.key_norm),
            query=_handle(attention.query),
            query_bias=_bias(attention.query),
            key=_handle(attention.key),
            key_bias=_bias(attention.key),
            value=_handle(attention.value),
            value_bias=_bias(attention.value),
            output=_handle(attention.output),
            output_bias=_bias(attention.output),
            gate=_handle(mlp.gate),
            gate_bias=_bias(mlp.gate),
            up=_handle(mlp.up),
            up_bias=_bias(mlp.up),
            down=_handle(mlp.down),
            down_bias=_bias(mlp.down),
        )

    def _evaluate(
        self,
        ids: NDArray[np.intp],
        sequences: Sequence[SequenceRows],
        positions: Positions,
        rooms: Sequence[StateRoom | None],
    ) -> F32:
        rotations = positions.rotations(self.rotary)
        logits = np.empty((sum(rows.num_wanted for rows in sequences), self.config.vocab_size), np.float32)
        handed = [_handed(rows, room) for rows, room in zip(sequences, rooms, strict=True)]
        self.handle.forward(self._embed(ids, positions), *_flat(rotations), logits, handed)
        return self._finished(logits)


def _handed(rows: SequenceRows, room: StateRoom | None) -> _native.SequenceTokens:
    length, tree = rows.cache.length, rows.branches
    masks = (None, 0) if tree.is_chain else (tree.masks[tree.num_cached :], length - tree.num_cached)
    states = ([], None) if room is None else (room.stages, room.values)
    return _native.SequenceTokens(*rows.cache.arrays, length, rows.num_rows, rows.num_wanted, *masks, *states)


def _handle(projection: Projection | None) -> _native.Matrix:
    assert projection is not None and isinstance(projection.matrix, NativeMatrix), "made of native matrices"
    return projection.matrix.handle


def _norm(norm: WeightedNorm | None) -> F32:
    assert norm is not None, "the native decoder norms what each part takes in"
    return _vector(norm.weight)


def _vector(values: F32) -> F32:
    return np.require(values, np.float32, ["C", "A"])


def _bias(projection: Projection | None) -> F32 | None:
    return None if projection is None or projection.bias is None else _vector(projection.bias)


def _flat(rotations: tuple[F32, F32]) -> tuple[F32, F32]:
    """(num_tokens, head_dim / 2) each."""
    cosines, sines = rotations
    return cosines[:, 0], sines[:, 0]
