"""A SPIRe draft: it sees what the level that asks it computed of the text, and its own memory of what it proposes.

Its keys and values are of a constant number of past tokens, and of those that it drafts.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from mxconv.arch.model_sizes import ModelSizes
from mxconv.arrays import F32
from mxconv.drafts.kind import LoadedLevel
from mxconv.drafts.pass_cost import PassCost
from mxconv.drafts.reader_kind import ReaderKind, reader_weights
from mxconv.drafts.readers.reader import ReaderSizes
from mxconv.drafts.readers.reading_draft import Listener, ReadingDraft
from mxconv.drafts.readers.spire_layers import Spire, SpireConfig
from mxconv.drafts.trees import Evaluate
from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.engine.forest import SequenceRows
from mxconv.engine.matrices import Matrices
from mxconv.engine.states import States
from mxconv.engine.stored_weights import tied
from mxconv.engine.tree import MOST_ROWS, Tree
from mxconv.package.level_record import LevelRecord
from mxconv.package.package import Package

Forward = Callable[[Decoder, SequenceRows], F32]


def evaluated_at_once(decoder: Decoder, rows: SequenceRows) -> F32:
    """The logits of a pass over these rows alone."""
    return decoder.forward_forest([rows])[0]


class PastKeys:
    """What the layers made of tokens that the target evaluated, as many as a token can see.

    A token's memory is kept beside what was made of it, so that keys and values are made again where another token, or
    the same by another level, is at its position now, and nowhere else.

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
            positions: of the n tokens: sinks, and after them neighbours that fit into a window.
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
    """What a SPIRe draft computes after one context after another.

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
        """Forget all rows: the next token follows `num_past` that the target evaluated.

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
        """Put keys and values of all layers after those that the cache holds."""
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


class SpireDraft(ReadingDraft):
    """Proposes a token, or a depth of a tree, a pass.

    Args:
        spire: the model.
        listener: for whom it drafts.
    """

    def __init__(self, spire: Spire, listener: Listener) -> None:
        super().__init__(spire.reads, listener)
        self._spire = spire
        self._cache = SpireCache(spire, listener.session.passes.forward)

    def most_tokens(self, context: Sequence[int]) -> int:
        """The number of tokens that it can propose; 0 without the states, or with a token that it has no row for."""
        if max(context) >= self._spire.vocab_size or not self.listener.session.holds(context):
            return 0
        return max(self._spire.config.decoder.max_position_embeddings - len(context) + 1, 0)

    def begin(self, context: Sequence[int]) -> tuple[F32, Evaluate]:
        """From the context's last token on, which the level above has not evaluated."""

        def memory_of(run: range) -> F32:
            if not self._spire.reads.num_states:
                return self._spire.embedded_memory(context[run.start : run.stop])
            return self._spire.past_memory(self.listener.session.states.read(self._spire.reads, run.start, run.stop))

        self._cache.begin(len(context) - 1, memory_of)
        return self._pass(context[-1:])[0], self._pass

    def _pass(self, tokens: Sequence[int], tree: Tree | None = None) -> F32:
        """(num_rows, vocab_size): the logits of rows of one depth, or of the context's last token."""
        with self.statistics.forward():
            return self._cache.evaluate(tokens, tree)[:, : self.listener.vocab_size]


class SpireKind(ReaderKind):
    """`spire:PATH_OR_ID`, in the layout of formats/spire.md."""

    name = "spire"

    def sizes(self, path: Path) -> ReaderSizes:
        return SpireConfig.from_file(path)

    def reader(
        self, folder: Path, record: LevelRecord, make: Matrices, stack: ExitStack, target: Decoder | None = None
    ) -> Spire:
        weights, _ = reader_weights(folder, record, make, stack)
        sizes = SpireConfig.from_file(folder / "config.json")
        return Spire(sizes, tied(weights, sizes.decoder), make, record.name)

    def cost(self, record: LevelRecord, place: Path | None, package: Package, target: PassCost | None) -> PassCost:
        """A few layers over sinks and a window, whatever the context."""
        assert place is not None, "it has a folder"
        config = SpireConfig.from_file(place / "config.json")
        sizes = ModelSizes.of(config.decoder)
        sizes = sizes.with_windows((config.sink + config.window,) * sizes.num_layers)
        return PassCost.of_folder(place, record, sizes, "spire")

    def draft(self, loaded: LoadedLevel, listener: Listener) -> SpireDraft:
        assert isinstance(loaded.reader, Spire)
        return SpireDraft(loaded.reader, listener)


SPIRE = SpireKind()
