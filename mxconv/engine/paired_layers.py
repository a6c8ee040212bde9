"""Layers over pairs of a token's embedding and a feature of the token before it, which the layers made themselves."""

from dataclasses import dataclass

import numpy as np

from mxconv.arch.config import ModelConfig
from mxconv.arrays import F32, I64
from mxconv.engine.layer import Layer
from mxconv.engine.rope import Positions
from mxconv.engine.sequence_rows import SequenceRows
from mxconv.engine.weights import CheckedWeights
from mxconv.kernels.rowwise import rms_norm

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
