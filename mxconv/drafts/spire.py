"""A SPIRe draft: it attends to the states of a constant number of past tokens, and to its own memory of its drafts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

import numpy as np

from mxconv.arch.config import ModelConfig
from mxconv.arch.families.registry import describe, describe_values
from mxconv.arch.fields import Fields
from mxconv.arch.model_sizes import ModelSizes
from mxconv.arrays import F32
from mxconv.drafts.kind import Run
from mxconv.drafts.pass_cost import PassCost
from mxconv.drafts.reader_kind import ReaderConfig, ReaderKind, reader_weights
from mxconv.engine.attention import WeightedAttention
from mxconv.engine.attention_window import SinkWindow
from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.engine.matrices import Matrices
from mxconv.engine.rope import Positions
from mxconv.engine.sequence_rows import Reads, SequenceRows, States
from mxconv.engine.stored_weights import tied
from mxconv.engine.tree import MOST_ROWS, Tree
from mxconv.engine.weights import CheckedWeights, ModelWeights
from mxconv.errors import ModelError
from mxconv.package.level_record import LevelRecord
from mxconv.package.package import Package
from mxconv.speculation.loaded_level import DraftInputs
from mxconv.speculation.model_draft import PassDraft
from mxconv.speculation.passes import OWN_PASSES, Passes
from mxconv.speculation.reader import Reader, ReaderSizes

LAYER_TYPES = ("llama", "mistral", "qwen2", "qwen3")  # whose layers are plain: formats/spire.md
MOST_SEEN = 65536  # positions of a window, and of sinks: room is made for them
NOT_ITS_OWN = ("layer_types", "max_window_layers", "sliding_window", "use_sliding_window")  # of a target's config.json
MEMORY_WEIGHTS = "spire.memory_weights"
PAST_MEMORIES = ("target", "embeddings")


@dataclass(frozen=True)
class SpireConfig(ReaderConfig):
    """A SPIRe draft.

    Args:
        decoder: its layers.
        target_layers: the target's layer, from 0 on, that each was copied from.
        sink: the number of first positions that a token attends to.
        window: of last ones, itself included.
        past_memory: the memory of tokens that the target evaluated: its states, or the draft's embeddings.
    """

    decoder: ModelConfig
    target_layers: tuple[int, ...]
    sink: int
    window: int
    past_memory: Literal["target", "embeddings"] = "target"

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        fields.choice("model_type", ("spire",))
        layer_type = fields.choice("layer_type", LAYER_TYPES, default="llama")
        decoder = describe(Fields({**fields.values, "model_type": layer_type}, fields.name))
        past_memory = fields.choice("past_memory", PAST_MEMORIES, default="target")
        return cls(
            decoder=decoder.without_windows(),
            target_layers=_target_layers(fields, decoder.num_hidden_layers),
            sink=_seen(fields, "sink", 0, 1),
            window=_seen(fields, "window", 1, 64),
            past_memory="target" if past_memory == "target" else "embeddings",
        )

    @property
    def sizes(self) -> ReaderSizes:
        return ReaderSizes(self.decoder.hidden_size, self.decoder.vocab_size, max(self.target_layers) + 1)

    @property
    def num_layers(self) -> int:
        return self.decoder.num_hidden_layers

    @property
    def reads(self) -> Reads:
        """The states that feed the target's layers."""
        return Reads(tuple(sorted(set(self.target_layers)))) if self.past_memory == "target" else Reads()


def config_for(
    target: Mapping[str, object],
    target_layers: Sequence[int],
    sink: int = 1,
    window: int = 64,
    past_memory: Literal["target", "embeddings"] = "target",
) -> dict[str, object]:
    """The config.json of a draft with a target's own sizes.

    Args:
        target: the content of its config.json.
        target_layers: those to copy, numbered from 0.
        sink: as `SpireConfig` has it, as have the others.

    Raises:
        ModelError: the target is of an architecture that is not supported or lacks such a layer.
    """
    own = describe_values(dict(target))
    if own.model_type not in LAYER_TYPES:
        raise ModelError(
            f"SPIRe draft of a {own.model_type}: layers of {', '.join(LAYER_TYPES)} can be copied. Train another draft."
        )
    if not target_layers or not all(0 <= layer < own.num_hidden_layers for layer in target_layers):
        raise ModelError(
            f"SPIRe draft of layers {list(target_layers)}: the target has 0 to {own.num_hidden_layers - 1}; at least "
            "one of these is required. Name others."
        )
    return {
        **{key: value for key, value in target.items() if key not in NOT_ITS_OWN},
        "architectures": ["SpireDraft"],
        "model_type": "spire",
        "layer_type": own.model_type,
        "num_hidden_layers": len(target_layers),
        "target_layers": list(target_layers),
        "sink": sink,
        "window": window,
        "past_memory": past_memory,
    }


def _target_layers(fields: Fields, num_layers: int) -> tuple[int, ...]:
    layers = fields.values.get("target_layers")
    if (
        not isinstance(layers, list)
        or len(layers) != num_layers
        or not all(type(layer) is int and layer >= 0 for layer in layers)
    ):
        fields.reject(
            "target_layers", f"a list of num_hidden_layers, {num_layers}, numbers of layers from 0 on is required"
        )
    return tuple(layers)


def _seen(fields: Fields, key: str, least: int, default: int) -> int:
    count = fields.values.get(key)
    if count is None:
        return default
    if type(count) is not int or not least <= count <= MOST_SEEN:
        fields.reject(key, f"an integer from {least} to {MOST_SEEN} is required")
    return count


class Spire(Reader):
    """A draft that reads the states which feed some of the target's layers.

    Args:
        weights: tensors by the names of formats/spire.md, `lm_head.weight` among them.

    Raises:
        ModelError: a tensor is missing or misshapen.
    """

    def __init__(self, config: SpireConfig, weights: ModelWeights, make: Matrices, name: str) -> None:
        super().__init__(config.sizes, config.reads, name)
        self.config = config
        num_layers = config.num_layers
        mixing = CheckedWeights(weights, name).matrix(MEMORY_WEIGHTS, num_layers, num_layers + 1)
        self.memory_shares = _softmax(mixing.rows(np.arange(num_layers)))  # (num_layers, num_layers + 1)
        seen = SinkWindow(config.sink, config.window)
        self.decoder: Decoder = make.decoder(config.decoder, weights, name).variant(pattern=seen)
        places = self.reads.layers
        self._places = [places.index(layer) for layer in config.target_layers] if places else []

    def visible_past(self, num_tokens: int) -> tuple[range, range]:
        """The positions among the first `num_tokens` that the next token attends to: sinks, and the others."""
        start = max(num_tokens - self.config.window + 1, 0)
        sinks = range(min(self.config.sink, start))
        return sinks, range(start, num_tokens)

    def past_memory(self, states: F32) -> F32:
        """(num_layers, n, hidden_size): each layer's memory of tokens, from the states (num_states, n, ...) read."""
        return states[self._places]

    def embedded_memory(self, tokens: Sequence[int]) -> F32:
        """The same memory, of the draft's own embeddings."""
        rows = self.decoder.embedding.rows(np.array(tokens, np.intp))
        return np.repeat(rows[None], self.config.num_layers, axis=0)

    def feedback_memory(self, states: F32) -> F32:
        """The same memory of tokens that it evaluated: all its states (num_layers + 1, n, hidden_size), mixed."""
        mixed: F32 = np.einsum("il,lnh->inh", self.memory_shares, states)
        return mixed

    def keys_and_values(self, layer: int, memory: F32, positions: Sequence[int]) -> tuple[F32, F32]:
        """A layer's keys and values (n, num_key_value_heads, head_dim) from the memory (n, hidden_size) of n tokens."""
        own = self.decoder.layers[layer]
        assert own.before_mixer is not None, "its layers norm what attention takes in"
        assert isinstance(own.attention, WeightedAttention), "its layers have keys of their own"
        return own.attention.keys_and_values(own.before_mixer(memory), Positions(positions))


def _softmax(weights: F32) -> F32:
    """Over the last axis."""
    shares = np.exp(weights - weights.max(axis=-1, keepdims=True))
    result: F32 = shares / shares.sum(axis=-1, keepdims=True)
    return result


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
        positions, place = list(rows.positions), self._cache.length
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
        if max(context) >= self._spire.sizes.vocab_size or not self.inputs.session.holds(context):
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
    draft_type = SpireDraft

    def reader(self, folder: Path, record: LevelRecord, run: Run) -> Spire:
        weights, _ = reader_weights(folder, record, run)
        config = SpireConfig.from_file(folder / "config.json")
        return Spire(config, tied(weights, config.decoder), run.matrices, record.name)

    def cost(self, record: LevelRecord, place: Path | None, package: Package, target: PassCost | None) -> PassCost:
        """A few layers over sinks and a window, whatever the context."""
        assert place is not None, "it has a folder"
        config = SpireConfig.from_file(place / "config.json")
        sizes = ModelSizes.of(config.decoder)
        sizes = sizes.with_windows((config.sink + config.window,) * sizes.num_layers)
        return PassCost.of_folder(place, record, sizes, "spire")


SPIRE = SpireKind()
