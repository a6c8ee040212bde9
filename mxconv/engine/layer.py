"""One transformer layer: a mixer and an MLP with their norms, added to its input; and layers over pairs of inputs."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mxconv.arch.config import ModelConfig
from mxconv.arch.description import Attention, LatentAttention
from mxconv.arch.elements import Mixture
from mxconv.arrays import F32, I64
from mxconv.engine.attention import WeightedAttention, WeightedLatentAttention
from mxconv.engine.attention_window import SinkWindow
from mxconv.engine.mlp import WeightedInput, WeightedMixture, WeightedMlp
from mxconv.engine.recurrent import RecurrentMixer, recurrent_mixer
from mxconv.engine.rope import Positions
from mxconv.engine.sequence_rows import SequenceRows
from mxconv.engine.weights import CheckedWeights, WeightedNorm
from mxconv.kernels.rowwise import rms_norm


class Layer:
    """The tensors of layer `index`, and what it does with them.

    Args:
        weights: all tensors.
        config: what the model is made of.
        index: of the layer.
        prefix: of its tensors' names; None is the model's own, followed by the index.
        attended_size: numbers of a row that attention takes in; None is the hidden size.
    """

    mixer: WeightedAttention | WeightedLatentAttention | RecurrentMixer
    mlp: WeightedMlp | WeightedMixture | None = None
    pattern: SinkWindow | None = None  # of drafts

    def __init__(
        self,
        weights: CheckedWeights,
        config: ModelConfig,
        index: int,
        prefix: str | None = None,
        attended_size: int | None = None,
    ) -> None:
        own = weights.under(f"{config.layer_prefix}.{index}." if prefix is None else prefix)
        parts, hidden = config.layers[index], config.hidden_size
        self.index = index
        self.parts = parts
        if isinstance(parts.mixer, Attention):
            self.mixer = WeightedAttention(own, parts.mixer, index, (attended_size or hidden, hidden))
        elif isinstance(parts.mixer, LatentAttention):
            self.mixer = WeightedLatentAttention(own, parts.mixer, index, (attended_size or hidden, hidden))
        else:
            self.mixer = recurrent_mixer(own, parts.mixer, index, hidden)
        if isinstance(parts.mlp, Mixture):
            self.mlp = WeightedMixture(own, parts.mlp, hidden)
        elif parts.mlp is not None:
            self.mlp = WeightedMlp(own, parts.mlp, hidden)
        self.before_mixer = own.norm(parts.before_mixer, hidden)
        self.after_mixer = own.norm(parts.after_mixer, hidden)
        self.before_mlp = own.norm(parts.before_mlp, hidden)
        self.after_mlp = own.norm(parts.after_mlp, hidden)
        self.layer_input = WeightedInput(own, parts.layer_input, hidden) if parts.layer_input else None
        self.scalar = own.vector(parts.scalar, 1)

    @property
    def attention(self) -> WeightedAttention | WeightedLatentAttention:
        """The mixer, of a layer that attends."""
        assert not isinstance(self.mixer, RecurrentMixer), "layers that attend have attention"
        return self.mixer

    def __call__(
        self, x: F32, sequences: Sequence[SequenceRows], positions: Positions, own_inputs: F32 | None = None
    ) -> F32:
        """Evaluate rows after what their caches hold, writing their keys and values there, where there is room.

        Args:
            x: (num_tokens, hidden_size) float32, as is the result; the rows of one sequence after those of another.
            sequences: their caches and trees.
            positions: of the rows.
            own_inputs: the layer's own embeddings of them, (num_tokens, size), where it has such.
        """
        return self.finished(x, self.mixed(x, sequences, positions), own_inputs)

    def mixed(self, x: F32, sequences: Sequence[SequenceRows], positions: Positions) -> F32:
        """The first half: rows and what the mixer adds to them."""
        taken = _normed(self.before_mixer, x)
        return x + self._scaled(_normed(self.after_mixer, self.mixer(taken, sequences, positions, self.pattern)))

    def finished(self, x: F32, mixed: F32, own_inputs: F32 | None = None) -> F32:
        """The second half: what the MLP and the layer's own inputs make of the first one of `x`."""
        if self.mlp is not None:
            mixed = self.with_mlp(mixed, x if self.parts.is_parallel else mixed)
        if self.layer_input is not None and own_inputs is not None:
            mixed = mixed + self.layer_input(mixed, own_inputs)
        return mixed if self.scalar is None else mixed * self.scalar

    def with_mlp(self, x: F32, taken: F32 | None = None) -> F32:
        """Rows and what the MLP makes of others (None: of the same), (num_tokens, hidden_size)."""
        assert self.mlp is not None, "for layers that have one"
        h = _normed(self.before_mlp, x if taken is None else taken)
        return x + self._scaled(_normed(self.after_mlp, self.mlp(h)))

    def _scaled(self, added: F32) -> F32:
        multiplier = self.parts.residual_multiplier
        return added if multiplier == 1 else added * np.float32(multiplier)


def _normed(norm: WeightedNorm | None, x: F32) -> F32:
    return x if norm is None else norm(x)


EMBEDDING = "embed_tokens.weight"


@dataclass(frozen=True)
class PairRules:
    """What such layers do between their matrices."""

    adds_to_normed: bool  # the first layer adds to its normed feature, not to the feature
    feeds_normed: bool  # what is fed back has gone through the final norm


class PairedLayers:
    """The first layer's attention takes in (n, 2 * hidden_size): embeddings and features, each normed.

    Args:
        weights: under the names of a `speculators` head.
        config: of the layers.
        tokens: (num_tokens,) of each row of the output head, its id in the embedding.
        rules: between matrices.

    Raises:
        ModelError: a tensor is missing or misshapen.
    """

    def __init__(self, weights: CheckedWeights, config: ModelConfig, tokens: I64, rules: PairRules) -> None:
        size = config.hidden_size
        self.config = config
        self.tokens = tokens
        self.rules = rules
        self.embedding = weights.matrix(EMBEDDING, config.vocab_size, size)
        self.feature_norm = weights.vector("layers.0.hidden_norm.weight", size)
        self.layers = [
            Layer(weights, config, index, f"layers.{index}.", size if index else 2 * size)
            for index in range(config.num_hidden_layers)
        ]
        self.norm = weights.vector("norm.weight", size)
        self.head = weights.matrix("lm_head.weight", len(tokens), size)

    def made(self, embedded: F32, features: F32, rows: SequenceRows, positions: Positions) -> F32:
        """(n, hidden_size) float32: the features of n tokens, from their embeddings and the features before them."""
        first, eps = self.layers[0], self.config.rms_norm_eps
        assert first.before_mixer is not None, "its layers norm what attention takes in"
        normed = rms_norm(features, self.feature_norm, eps)
        taken = np.concatenate([first.before_mixer(embedded), normed], axis=1)
        x = normed if self.rules.adds_to_normed else features
        x = first.with_mlp(x + first.attention(taken, [rows], positions))
        for layer in self.layers[1:]:
            x = layer(x, [rows], positions)
        return rms_norm(x, self.norm, eps) if self.rules.feeds_normed else x

    def logits(self, features: F32) -> F32:
        """(n, num_tokens) float32."""
        if not self.rules.feeds_normed:
            features = rms_norm(features, self.norm, self.config.rms_norm_eps)
        return self.head.multiply(features)
