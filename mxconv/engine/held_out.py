"""Texts that a calibration is judged by: they go through the target, the cast and the calibrated draft, layer by layer.

held_out = HeldOutTexts(TextStates(decoder, texts), first_counted=[1, 1])
for index in range(config.num_hidden_layers):
    held_out.advance(index, [exact, cast, calibrated])  # the weights, those of the layer at least
cast, calibrated = held_out.agreements(norm, [exact_head, cast_head, calibrated_head])
"""

from collections.abc import Sequence

import numpy as np

from mxconv.engine.attention import WeightedAttention
from mxconv.engine.layer import Layer
from mxconv.engine.text_states import TextStates
from mxconv.engine.weights import CheckedWeights, ModelWeights, WeightedNorm
from mxconv.kernels.matrix import Matrix

NUM_MODELS = 3  # the first is the target
CHUNK_ROWS = 64  # whose logits are in memory at a time


class HeldOutTexts:
    """The hidden states of some texts in each model."""

    def __init__(self, texts: TextStates, first_counted: Sequence[int]) -> None:
        """Begin with embedded texts, and the place of the first token of each that counts, 1 at the earliest."""
        self._models = [texts, *(texts.copy() for _ in range(NUM_MODELS - 1))]
        firsts = iter(first_counted)
        # of each group the rows that a token which counts comes after
        self._counted = [
            np.concatenate([np.arange(1, len(text) + 1) % len(text) >= next(firsts) for text in group])
            for group in texts.groups
        ]

    @property
    def num_tokens(self) -> int:
        """How many tokens count."""
        return int(sum(each.sum() for each in self._counted))

    def advance(self, index: int, weights: Sequence[ModelWeights]) -> None:
        """Evaluate a layer by the weights of each model."""
        for texts, each in zip(self._models, weights, strict=True):
            layer = Layer(CheckedWeights(each, "calibration"), texts.config, index)
            if isinstance(layer.mixer, WeightedAttention):
                layer.mixer.attends_together = True
            for number in range(len(texts.states)):
                texts.states[number] = texts.finished(layer, number, texts.mixed(layer, number))

    def agreements(self, norm: WeightedNorm, heads: Sequence[Matrix]) -> list[float]:
        """The share of tokens for which each model but the target finds the same token the likeliest as the target."""
        num_equal = np.zeros(len(heads) - 1, np.int64)
        for number, counted in enumerate(self._counted):
            rows = np.flatnonzero(counted)
            for start in range(0, len(rows), CHUNK_ROWS):
                states = [texts.states[number][rows[start : start + CHUNK_ROWS]] for texts in self._models]
                first, *others = (
                    head.multiply(norm(each)).argmax(axis=1) for head, each in zip(heads, states, strict=True)
                )
                num_equal += [int((first == each).sum()) for each in others]
        return [int(count) / self.num_tokens for count in num_equal]
