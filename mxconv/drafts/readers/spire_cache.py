"""The keys and values that a SPIRe draft sees: of a constant number of past tokens, and of those that it drafts."""

from collections.abc import Callable, Sequence

import numpy as np

from mxconv.arrays import F32
from mxconv.drafts.readers.spire_layers import Spire
from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.engine.forest import SequenceRows
from mxconv.engine.states import States
from mxconv.engine.tree import MOST_ROWS, Tree

Forward = Callable[[Decoder, SequenceRows], F32]


def evaluated_at_once(decoder: Decoder, rows: SequenceRows) -> F32:
    """The logits of a pass over these rows alone."""
    return decoder.forward_forest([rows])[0]


class PastKeys:
    """What the layers made of tokens that the target evaluated, as many as a token can see.

    A token's memory is kept beside what was made of it, so that keys and values are made again where another token, or
    the same by another level, stands at its position now, and nowhere else.

    Args:
        spire: the draft.
    """

    def __init__(self, spire: Spire) -> None:
        self._spire = spire
        config = spire.config
        self._num_slots = min(config.sink + config.window - 1, config.decoder.max_position_embeddings)
        shape = config.num_layers, self._num_slots
        heads = config.decoder.num_key_value_heads, config.decoder.head_dim
        self._positions = np.full(self._num_slots, -1)
        self._memory = np.empty((*shape, config.hidden_size), np.float32)
        self._keys = np.empty((*shape, *heads), np.float32)
        self._values = np.empty((*shape, *heads), np.float32)

    def read(self, positions: Sequence[int], memory: F32) -> tuple[F32, F32]:
        """Keys and values (num_layers, n, num_key_value_heads, head_dim) of tokens whose memory is given.

        Args:
            positions: of the n tokens: sinks, and behind them neighbours that fit into a window.
            memory: (num_layers, n, hidden_size) float32.
        """
        sink = self._spire.config.sink
        past_sinks = max(self._num_slots - sink, 1)
        slots = np.array([p if p < sink else sink + (p - sink) % past_sinks for p in positions], np.intp)
        same = (self._positions[slots] == positions) & (self._memory[:, slots] == memory).all(axis=(0, 2))
        if new := np.flatnonzero(~same).tolist():
            self._positions[slots[new]] = np.array(positions)[new]
            self._memory[:, slots[new]] = memory[:, new]
            for layer in range(len(memory)):
                made = self._spire.keys_and_values(layer, memory[layer, new], [positions[place] for place in new])
                self._keys[layer, slots[new]], self._values[layer, slots[new]] = made
        return self._keys[:, slots], self._values[:, slots]


class SpireCache:
    """What a SPIRe draft computes behind one context after another.

    Args:
        spire: the draft.
        forward: the pass over its rows; their logits.
    """

    def __init__(self, spire: Spire, forward: Forward = evaluated_at_once) -> None:
        self._spire = spire
        self._forward = forward
        self._past = PastKeys(spire)
        config = spire.config
        self._cache = KVCache(config.decoder, min(config.sink + config.window, MOST_ROWS) + MOST_ROWS)
        self._unmixed: tuple[int, list[int], F32] | None = None  # rows of the last pass: place, positions, states

    def begin(self, num_past: int, memory_of: Callable[[range], F32]) -> None:
        """Forget all rows: the next token stands behind `num_past` that the target evaluated.

        Args:
            num_past: from 0 on.
            memory_of: the memory (num_layers, n, hidden_size) of tokens at some positions.
        """
        runs = [run for run in self._spire.visible_past(num_past) if run]
        positions = [position for run in runs for position in run]
        self._cache.truncate(0)
        self._cache.num_left_out = 0
        self._unmixed = None
        if positions:
            memory = np.concatenate([memory_of(run) for run in runs], axis=1)
            self._append(*self._past.read(positions, memory))
            self._cache.num_left_out = num_past - len(positions)

    def evaluate(self, tokens: Sequence[int], tree: Tree | None = None) -> F32:
        """(num_rows, vocab_size): the logits of new rows, none of which hangs below another.

        Args:
            tokens: of the rows.
            tree: where they hang among those evaluated since the first; None is the first, alone.
        """
        self._mix()
        states = States(range(self._spire.config.num_layers + 1))
        rows = SequenceRows(tokens, self._cache, tree, states=states)
        positions, place = rows.positions, self._cache.length
        logits = self._forward(self._spire.decoder, rows)
        assert states.values is not None
        self._unmixed = place, positions, states.values
        return logits

    def _append(self, keys: F32, values: F32) -> None:
        """Put keys and values of all layers behind those that the cache holds."""
        num_rows = keys.shape[1]
        self._cache.reserve(num_rows)
        for layer in range(len(keys)):
            self._cache.write(layer, keys[layer], values[layer])
        self._cache.advance(num_rows)

    def _mix(self) -> None:
        """The rows of the last pass saw themselves by their own inputs; the next are to see their memory."""
        if self._unmixed is None:
            return
        place, positions, states = self._unmixed
        memory = self._spire.feedback_memory(states)
        made = [self._spire.keys_and_values(layer, rows, positions) for layer, rows in enumerate(memory)]
        self._cache.truncate(place)
        self._append(np.array([keys for keys, _ in made]), np.array([values for _, values in made]))
        self._unmixed = None
