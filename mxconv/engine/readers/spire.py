"""The SPIRe draft: layers copied from the target, which see the target's hidden states in place of their own past.

It is an ordinary decoder over a KV cache whose keys and values were made of something else: see formats/spire.md.

Source:
    Neelam et al., "SPIRe: Boosting LLM Inference Throughput with Speculative Decoding" (arXiv 2504.06419), section 3;
    feedback memory: Fan et al., "Addressing Some Limitations of Transformers with Feedback Memory" (arXiv 2002.09402).
"""

from collections.abc import Sequence

import numpy as np

from mxconv.arrays import F32
from mxconv.engine.decoder import Decoder
from mxconv.engine.matrices import Matrices
from mxconv.engine.mixer import WeightedAttention
from mxconv.engine.positions import Positions
from mxconv.engine.readers.spire_config import SpireConfig
from mxconv.engine.sink_window import SinkWindow
from mxconv.engine.states import Reads
from mxconv.engine.weights import CheckedWeights, Weights

MEMORY_WEIGHTS = "spire.memory_weights"


class Spire:
    """A draft that reads the states which feed some of the target's layers.

    Args:
        config: sizes.
        weights: tensors by the names of formats/spire.md, `lm_head.weight` among them.
        make: what makes its decoder.
        name: what messages call it.

    Raises:
        ModelError: a tensor is missing or misshapen.
    """

    num_passes = 1

    def __init__(self, config: SpireConfig, weights: Weights, make: Matrices, name: str) -> None:
        self.config = config
        self.name = name
        num_layers = config.num_layers
        mixing = CheckedWeights(weights, name).matrix(MEMORY_WEIGHTS, num_layers, num_layers + 1)
        self.memory_shares = _softmax(mixing.rows(np.arange(num_layers)))  # (num_layers, num_layers + 1)
        seen = SinkWindow(config.sink, config.window)
        self.decoder: Decoder = make.decoder(config.decoder, weights, name).variant(sink_window=seen)
        places = self.reads.layers
        self._places = [places.index(layer) for layer in config.target_layers] if places else []

    @property
    def reads(self) -> Reads:
        return self.config.reads

    @property
    def hidden_size(self) -> int:
        return self.config.hidden_size

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def least_layers(self) -> int:
        return self.config.least_layers

    def visible_past(self, num_tokens: int) -> tuple[range, range]:
        """Of the first `num_tokens`, those that the next token sees: sinks and the others, apart."""
        start = max(num_tokens - self.config.window + 1, 0)
        sinks = range(min(self.config.sink, start))
        return sinks, range(start, num_tokens)

    def past_memory(self, states: F32) -> F32:
        """(num_layers, n, hidden_size): what each layer sees of tokens, from the states (num_states, n, ...) read."""
        return states[self._places]

    def embedded_memory(self, tokens: Sequence[int]) -> F32:
        """The same of a draft that sees its own embeddings."""
        rows = self.decoder.embedding.rows(np.array(tokens, np.intp))
        return np.repeat(rows[None], self.config.num_layers, axis=0)

    def feedback_memory(self, states: F32) -> F32:
        """The same of tokens that it evaluated itself: all its states (num_layers + 1, n, hidden_size), mixed."""
        mixed: F32 = np.einsum("il,lnh->inh", self.memory_shares, states)
        return mixed

    def keys_and_values(self, layer: int, memory: F32, positions: Sequence[int]) -> tuple[F32, F32]:
        """What a layer makes of memory.

        Args:
            layer: the draft's, from 0 on.
            memory: (n, hidden_size) float32.
            positions: of the n tokens in the text.

        Returns:
            Two (n, num_key_value_heads, head_dim) float32 arrays.
        """
        own = self.decoder.layers[layer]
        assert own.before_mixer is not None, "its layers norm what attention takes in"
        assert isinstance(own.attention, WeightedAttention), "its layers have keys of their own"
        return own.attention.keys_and_values(own.before_mixer(memory), Positions(positions))


def _softmax(weights: F32) -> F32:
    """Over the last axis."""
    shares = np.exp(weights - weights.max(axis=-1, keepdims=True))
    result: F32 = shares / shares.sum(axis=-1, keepdims=True)
    return result
