"""The sizes of a SPIRe draft, read from its config.json: formats/spire.md."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np

from mxconv.arch.config import ModelConfig
from mxconv.arch.families.registry import describe, describe_values
from mxconv.arch.fields import Fields
from mxconv.arrays import F32
from mxconv.drafts.readers.reader_config import ReaderConfig
from mxconv.engine.attention import WeightedAttention
from mxconv.engine.attention_window import SinkWindow
from mxconv.engine.decoder import Decoder
from mxconv.engine.matrices import Matrices
from mxconv.engine.rope import Positions
from mxconv.engine.states import Reads
from mxconv.engine.weights import CheckedWeights, ModelWeights
from mxconv.errors import ModelError
from mxconv.speculation.reader import Reader, ReaderSizes

LAYER_TYPES = ("llama", "mistral", "qwen2", "qwen3")  # whose layers are plain: formats/spire.md
MOST_SEEN = 65536  # positions of a window, and of sinks: room is made for them
NOT_ITS_OWN = ("layer_types", "max_window_layers", "sliding_window", "use_sliding_window")  # of a target's config.json
PAST_MEMORIES: tuple[Literal["target", "embeddings"], ...] = ("target", "embeddings")


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
        num_layers = decoder.num_hidden_layers
        past_memory = fields.choice("past_memory", PAST_MEMORIES, default="target")
        return cls(
            decoder=decoder.without_windows(),
            target_layers=_target_layers(fields, num_layers),
            sink=_seen(fields, "sink", 0, 1),
            window=_seen(fields, "window", 1, 64),
            past_memory="target" if past_memory == "target" else "embeddings",
        )

    @property
    def sizes(self) -> ReaderSizes:
        return ReaderSizes(self.decoder.hidden_size, self.vocab_size, max(self.target_layers) + 1)

    @property
    def vocab_size(self) -> int:
        return self.decoder.vocab_size

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


MEMORY_WEIGHTS = "spire.memory_weights"


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
