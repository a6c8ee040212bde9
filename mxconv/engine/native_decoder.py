"""The decoder whose whole forward pass is one native call; the NumPy one remains what it is compared with."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mxconv.arch.config import ModelConfig
from mxconv.arrays import F32
from mxconv.engine.decoder import Decoder
from mxconv.engine.forest import SequenceRows
from mxconv.engine.native_layers import NativeLayers, native, native_handle
from mxconv.engine.rope import Positions
from mxconv.engine.state_cache import StateCache
from mxconv.engine.states import StateRoom
from mxconv.engine.weights import ModelWeights
from mxconv.kernels import _native


class NativeDecoder(Decoder):
    """The same model, checks and row promise as `Decoder`, by the native kernels.

    Its bits are not those of NumPy: they are a promise per machine, instruction set and build. BF16 weights multiply
    activations rounded to BF16, as such models were trained to.

    Args:
        config: the description, of parts that `mxconv.engine.matrices.missing_parts` does not name.
        weights: every matrix but those that are looked up is a `NativeMatrix`.
        name: what messages call the model.
        engine: which kernels, how many threads.
    """

    def __init__(self, config: ModelConfig, weights: ModelWeights, name: str, engine: _native.Engine) -> None:
        self.engine = engine
        super().__init__(config, weights, name)

    def _bind(self) -> None:
        config = self.config
        self._native_layers = NativeLayers(self.layers, config.slots)
        self.handle = _native.Decoder(
            self.engine,
            self._native_layers.handles,
            native(self.norm),
            native_handle(self.head),
            config.logit_multiplier,
            config.logit_cap or 0.0,
            (len(config.attentions), config.num_key_value_heads, config.head_dim),
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
        self.handle.forward(x, *self._native_layers.tables(positions), own, logits, tokens)
        return logits


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
