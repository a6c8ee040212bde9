"""A SPIRe draft: it attends to the states of a constant number of past tokens, and to its own memory of its drafts."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from mxconv.arch.model_sizes import ModelSizes
from mxconv.arrays import F32
from mxconv.drafts.pass_cost import PassCost
from mxconv.drafts.reader_kind import ReaderKind, reader_weights
from mxconv.drafts.readers.spire_layers import Spire, SpireConfig
from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.engine.matrices import Matrices
from mxconv.engine.sequence_rows import SequenceRows
from mxconv.engine.states import States
from mxconv.engine.stored_weights import tied
from mxconv.engine.tree import MOST_ROWS, Tree
from mxconv.package.level_record import LevelRecord
from mxconv.package.package import Package
from mxconv.speculation.loaded_level import DraftInputs
from mxconv.speculation.model_draft import PassDraft
from mxconv.speculation.passes import OWN_PASSES, Passes


class PastKeys:
    """The keys and values of tokens that the target evaluated, as many as a token can attend to.

    They are kept beside the memory that they were made of, and are made again where that has changed.
    """

    def __init__(self, spire: Spire) -> None:
        self._spire = spire
        config, sizes = spire.config, spire.config.decoder
        self._num_slots = min(config.sink + config.window - 1, sizes.max_position_embeddings)
        heads = (config.num_layers, self._num_slots, sizes.num_key_value_heads, sizes.head_dim)
        self._positions = np.full(self._num_slots, -1)
        self._memory = np.empty((config.num_layers, self._num_slots, sizes.hidden_size), np.float32)
        self._keys, self._values = np.empty(heads, np.float32), np.empty(heads, np.float32)

    def read(self, positions: Sequence[int], memory: F32) -> tuple[F32, F32]:
        """Keys and values (num_layers, n, num_key_value_heads, head_dim) from memory (num_layers, n, hidden_size).

        The positions are sinks, and after them neighbours that fit into a window.
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
    """The keys and values of a SPIRe draft, after one context after another."""

    def __init__(self, spire: Spire, passes: Passes = OWN_PASSES) -> None:
        self._spire = spire
        self._passes = passes
        self._past = PastKeys(spire)
        config = spire.config
        self._cache = KVCache(config.decoder, min(config.sink + config.window, MOST_ROWS) + MOST_ROWS)
        self._unmixed: tuple[int, list[int], F32] | None = None  # rows of the last pass: place, positions, states

    def begin(self, num_past: int, memory_of: Callable[[range], F32]) -> None:
        """Forget all rows: the next token follows `num_past` that the target evaluated.

        `memory_of` gives the memory (num_layers, n, hidden_size) of tokens at some positions.
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
        """(num_rows, vocab_size): the logits of new rows of one depth of a tree; without one, of the first row."""
        self._mix()
        states = States(range(self._spire.config.num_layers + 1))
        rows = SequenceRows(tokens, self._cache, tree, states=states)
        positions, place = rows.positions, self._cache.length
        logits = self._passes.forward(self._spire.decoder, rows)
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
        """Replace the last rows' keys and values, of their own inputs, with those of their memory."""
        if self._unmixed is None:
            return
        place, positions, states = self._unmixed
        memory = self._spire.feedback_memory(states)
        made = [self._spire.keys_and_values(layer, rows, positions) for layer, rows in enumerate(memory)]
        self._cache.truncate(place)
        self._append(np.array([keys for keys, _ in made]), np.array([values for _, values in made]))
        self._unmixed = None


class SpireDraft(PassDraft):
    """Proposes a token, or a depth of a tree, a pass."""

    def __init__(self, spire: Spire, inputs: DraftInputs) -> None:
        super().__init__(inputs)
        inputs.session.states.want(spire.reads)
        self._spire = spire
        self._cache = SpireCache(spire, inputs.session.passes)

    def most_tokens(self, context: Sequence[int]) -> int:
        if max(context) >= self._spire.config.vocab_size or not self.inputs.session.holds(context):
            return 0
        return max(self._spire.config.decoder.max_position_embeddings - len(context) + 1, 0)

    def begin(self, context: Sequence[int]) -> F32:
        """Evaluate the context's last token, which the level above has not evaluated."""

        def memory_of(run: range) -> F32:
            if not self._spire.reads.num_states:
                return self._spire.embedded_memory(context[run.start : run.stop])
            return self._spire.past_memory(self.inputs.session.states.read(self._spire.reads, run.start, run.stop))

        self._cache.begin(len(context) - 1, memory_of)
        return self.evaluate(context[-1:])

    def evaluate(self, tokens: Sequence[int], tree: Tree | None = None) -> F32:
        with self.statistics.timed_pass():
            return self._cache.evaluate(tokens, tree)[:, : self.inputs.vocab_size]


class SpireKind(ReaderKind):
    """`spire:PATH_OR_ID`, in the layout of formats/spire.md."""

    name = "spire"
    config = SpireConfig

    def reader(
        self, folder: Path, record: LevelRecord, make: Matrices, stack: ExitStack, target: Decoder | None = None
    ) -> Spire:
        weights, _ = reader_weights(folder, record, make, stack)
        config = SpireConfig.from_file(folder / "config.json")
        return Spire(config, tied(weights, config.decoder), make, record.name)

    def cost(self, record: LevelRecord, place: Path | None, package: Package, target: PassCost | None) -> PassCost:
        """A few layers over sinks and a window, whatever the context."""
        assert place is not None, "it has a folder"
        config = SpireConfig.from_file(place / "config.json")
        sizes = ModelSizes.of(config.decoder)
        sizes = sizes.with_windows((config.sink + config.window,) * sizes.num_layers)
        return PassCost.of_folder(place, record, sizes, "spire")

    def draft(self, reader: Any, record: LevelRecord, inputs: DraftInputs) -> SpireDraft:
        return SpireDraft(reader, inputs)


SPIRE = SpireKind()
