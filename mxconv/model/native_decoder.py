"""The decoder whose whole forward pass is one native call; the NumPy one remains what it is compared with."""

from collections.abc import Sequence
from typing import Self

import numpy as np

from mxconv.arrays import F32
from mxconv.kernels import _native
from mxconv.kernels.matrix import Matrix
from mxconv.kernels.native_matrix import NativeMatrix
from mxconv.model.config import ModelConfig
from mxconv.model.decoder import Decoder
from mxconv.model.forest import SequenceRows
from mxconv.model.layer import Layer
from mxconv.model.sink_window import SinkWindow
from mxconv.model.skipped import Skipped
from mxconv.model.states import StateRoom
from mxconv.model.weights import Weights


class NativeDecoder(Decoder):
    """The same model, checks and row promise as `Decoder`, by the native kernels.

    Its bits are not those of NumPy: they are a promise per machine, instruction set and build. BF16 weights multiply
    activations rounded to BF16, as such models were trained to.

    Args:
        config: the architecture.
        weights: every matrix but the embedding is a `NativeMatrix`.
        name: what messages call the model.
        engine: which kernels, how many threads.
    """

    def __init__(self, config: ModelConfig, weights: Weights, name: str, engine: _native.Engine) -> None:
        super().__init__(config, weights, name)
        self.engine = engine
        self.handle = self._make_handle()

    def variant(
        self, skipped: Skipped | None = None, sink_window: SinkWindow | None = None, name: str | None = None
    ) -> Self:
        made = super().variant(skipped, sink_window, name)
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
            _vector(self.norm),
            _handle(self.head),
        )
        for layer in self.layers:
            self._add(layer, handle)
        return handle

    def _add(self, layer: Layer, handle: _native.Decoder) -> None:
        handle.add_layer(
            skips_attention=layer.skips_attention,
            skips_mlp=layer.skips_mlp,
            sink=layer.sink_window.sink if layer.sink_window else 0,
            recent=layer.sink_window.window if layer.sink_window else 0,
            window=self.config.windows[layer.index] or 0,
            input_norm=_vector(layer.input_norm),
            mlp_norm=_vector(layer.mlp_norm),
            query_norm=_optional(layer.query_norm),
            key_norm=_optional(layer.key_norm),
            query=_handle(layer.query.matrix),
            query_bias=_optional(layer.query.bias),
            key=_handle(layer.key.matrix),
            key_bias=_optional(layer.key.bias),
            value=_handle(layer.value.matrix),
            value_bias=_optional(layer.value.bias),
            output=_handle(layer.output.matrix),
            output_bias=_optional(layer.output.bias),
            gate=_handle(layer.gate.matrix),
            gate_bias=_optional(layer.gate.bias),
            up=_handle(layer.up.matrix),
            up_bias=_optional(layer.up.bias),
            down=_handle(layer.down.matrix),
            down_bias=_optional(layer.down.bias),
        )

    def _evaluate(
        self,
        x: F32,
        sequences: Sequence[SequenceRows],
        rotations: tuple[F32, F32],
        rooms: Sequence[StateRoom | None],
    ) -> F32:
        logits = np.empty((sum(rows.num_wanted for rows in sequences), self.config.vocab_size), np.float32)
        handed = [_handed(rows, room) for rows, room in zip(sequences, rooms, strict=True)]
        self.handle.forward(x, *_flat(rotations), logits, handed)
        return logits


def _handed(rows: SequenceRows, room: StateRoom | None) -> _native.SequenceTokens:
    length, tree = rows.cache.length, rows.branches
    masks = (None, 0) if tree.is_chain else (tree.masks[tree.num_cached :], length - tree.num_cached)
    states = ([], None) if room is None else (room.stages, room.values)
    return _native.SequenceTokens(*rows.cache.arrays, length, rows.num_rows, rows.num_wanted, *masks, *states)


def _handle(matrix: Matrix) -> _native.Matrix:
    assert isinstance(matrix, NativeMatrix), "a native decoder is made of native matrices"
    return matrix.handle


def _vector(values: F32) -> F32:
    return np.require(values, np.float32, ["C", "A"])


def _optional(values: F32 | None) -> F32 | None:
    return None if values is None else _vector(values)


def _flat(rotations: tuple[F32, F32]) -> tuple[F32, F32]:
    """(num_tokens, head_dim / 2) each."""
    cosines, sines = rotations
    return cosines[:, 0], sines[:, 0]
