"""The hidden states of texts on their way through a decoder: all texts go through one layer, then through the next.

    texts = TextStates(decoder, ids)
    for number in range(len(texts.states)):
        texts.states[number] = texts.finished(layer, number, texts.mixed(layer, number))

So what is learned from a layer needs no memory of the others.
"""

from collections.abc import Iterator, Sequence
from copy import copy

import numpy as np

from mxconv.arch.description import Attending
from mxconv.arrays import F32
from mxconv.engine.attention import WeightedAttention
from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.engine.layer import Layer
from mxconv.engine.rope import Positions
from mxconv.engine.sequence_rows import SequenceRows
from mxconv.engine.weights import CheckedWeights, ModelWeights, WeightedNorm
from mxconv.kernels.matrix import Matrix

PASS_TOKENS = 2048  # that go through a layer at a time: a group of texts
NUM_MODELS = 3  # the first is the target
CHUNK_ROWS = 64  # whose logits are in memory at a time


class TextStates:
    """What the next layer takes of each group of texts: `states[n]`, (num_tokens, hidden_size) float32."""

    def __init__(self, decoder: Decoder, texts: Sequence[Sequence[int]]) -> None:
        """Embed the texts."""
        self.config = decoder.config
        self.groups = list(_groups(texts))
        self.states: list[F32] = []
        self._own_inputs: list[F32 | None] = []  # (num_layers, num_tokens, size), where layers have inputs of their own
        for group in self.groups:
            ids = np.concatenate([np.array(text, np.intp) for text in group])
            states, own_inputs = decoder.first_inputs(ids, _positions(group))
            self.states.append(states)
            self._own_inputs.append(own_inputs)
        halves = [np.full(len(text), number % 2 == 1) for number, text in enumerate(texts)]
        if len(texts) == 1:
            halves = [np.arange(len(texts[0])) >= len(texts[0]) // 2]
        parts = iter(halves)
        # (num_tokens,) of each group: every other text is of the second half
        self.is_second = [np.concatenate([next(parts) for _ in group]) for group in self.groups]
        mixers = [layer.mixer for layer in self.config.layers]
        self._shares = any(isinstance(mixer, Attending) and mixer.source is not None for mixer in mixers)
        self._caches = self._fresh_caches()

    def copy(self) -> "TextStates":
        """The same texts on a way of their own; what does not change on it is shared."""
        other = copy(self)
        other.states, other._caches = list(self.states), self._fresh_caches()
        return other

    def _fresh_caches(self) -> list[list[KVCache]]:
        """A cache of each text, where layers read what others wrote."""
        return [[KVCache(self.config) for _ in group] for group in self.groups] if self._shares else []

    def mixed(self, layer: Layer, number: int) -> F32:
        """The states of a group with what a layer's mixer adds to them."""
        group = self.groups[number]
        caches = self._caches[number] if self._shares else [KVCache(self.config) for _ in group]
        sequences = [SequenceRows(text, cache) for text, cache in zip(group, caches, strict=True)]
        for rows in sequences:
            rows.cache.begin(rows.branches, 0)
        with np.errstate(over="ignore", invalid="ignore"):
            return layer.mixed(self.states[number], sequences, _positions(group))

    def finished(self, layer: Layer, number: int, mixed: F32) -> F32:
        """What the rest of the layer makes of that."""
        own_inputs = self._own_inputs[number]
        with np.errstate(over="ignore", invalid="ignore"):
            return layer.finished(self.states[number], mixed, None if own_inputs is None else own_inputs[layer.index])


class HeldOutTexts:
    """Texts that a calibration is judged by: on their way through the target, the cast and the calibrated draft.

    held_out = HeldOutTexts(TextStates(decoder, texts), first_counted=[1, 1])
    for index in range(config.num_hidden_layers):
        held_out.advance(index, [exact, cast, calibrated])  # the weights, those of the layer at least
    cast, calibrated = held_out.agreements(norm, [exact_head, cast_head, calibrated_head])
    """

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


def _positions(group: Sequence[Sequence[int]]) -> Positions:
    return Positions([position for text in group for position in range(len(text))])


def _groups(texts: Sequence[Sequence[int]]) -> Iterator[list[Sequence[int]]]:
    """Texts that go through a layer together: as many as have so many tokens, or one."""
    group: list[Sequence[int]] = []
    for text in texts:
        if group and sum(map(len, group)) + len(text) > PASS_TOKENS:
            yield group
            group = []
        group.append(text)
    if group:
        yield group
