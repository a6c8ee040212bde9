"""Mixers with a state: short convolutions, gated DeltaNet and Mamba-2, each row walked along its path."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from mxconv.arch.elements import Convolution, GatedDeltaNet, Mamba2, Recurrent, ShortConvolution
from mxconv.arrays import F32
from mxconv.codecs.fold import fold_in_place
from mxconv.engine.activations import ACTIVATIONS, row_sigmoid, softplus
from mxconv.engine.attention_window import SinkWindow
from mxconv.engine.rope import Positions
from mxconv.engine.sequence_rows import SequenceRows, spans
from mxconv.engine.state_cache import LayerState, StateCache
from mxconv.engine.weights import CheckedWeights, Projection, WeightedPart
from mxconv.kernels.rowwise import rms_norm, silu


class RecurrentMixer(WeightedPart, ABC):
    """A mixer whose rows are evaluated one after another along their paths; `index` is its layer's number.

    Matrices multiply all rows of a pass together, `step` one row at a time, always the same arithmetic.
    """

    index: int
    output: Projection  # what it adds, of all rows together

    @abstractmethod
    def split(self, h: F32) -> tuple[F32, F32]:
        """Split its input into the rows' inputs, (num_tokens, input_size), and what only `finish` needs."""

    @abstractmethod
    def step(self, state: LayerState, inputs: F32) -> F32:
        """Change the state by one row's input and return what is read of it."""

    @abstractmethod
    def finish(self, made: F32, aside: F32) -> F32:
        """(num_tokens, hidden_size) of what `step` gave of each row."""

    def __call__(
        self, h: F32, sequences: Sequence[SequenceRows], positions: Positions, pattern: SinkWindow | None = None
    ) -> F32:
        """Compute what it adds to rows, (num_tokens, hidden_size), from its input for them."""
        inputs, aside = self.split(h)
        made = []
        for rows, span in zip(sequences, spans(rows.num_rows for rows in sequences), strict=True):
            states, slot = self._states(rows)
            made.append(states.run(slot, inputs[span], self.step))
        return self.finish(np.concatenate(made), aside)

    def _states(self, rows: SequenceRows) -> tuple[StateCache, int]:
        assert rows.cache.states is not None, "a cache of this model"
        return rows.cache.states, rows.cache.slots[self.index]


class WeightedConvolution:
    """A causal convolution, a row at a time: taps, (kernel_size, num_channels) float32, the oldest row's first."""

    def __init__(self, weights: CheckedWeights, parts: Convolution, num_channels: int) -> None:
        stored = weights.array(f"{parts.name}.weight", (num_channels, 1, parts.kernel_size))
        self.taps = np.ascontiguousarray(stored[:, 0].T)
        self.bias = weights.vector(f"{parts.name}.bias" if parts.has_bias else None, num_channels)

    def step(self, window: F32, x: F32) -> F32:
        """Convolve a row, (num_channels,), and make it the last of the window, (kernel_size - 1, num_channels)."""
        total: F32 = x * self.taps[-1]
        for seen, tap in zip(window, self.taps[:-1], strict=True):
            total += seen * tap
        if self.bias is not None:
            total += self.bias
        if len(window):
            window[:-1] = window[1:]
            window[-1] = x
        return total


class WeightedShortConvolution(RecurrentMixer):
    """The short convolution between two gates, with its matrices and taps."""

    def __init__(self, weights: CheckedWeights, parts: ShortConvolution, index: int, hidden_size: int) -> None:
        self.index = index
        self.parts = parts
        self.inputs = weights.projection(parts.inputs, 3 * parts.size, hidden_size)
        self.convolution = WeightedConvolution(weights, parts.convolution, parts.size)
        self.output = weights.projection(parts.output, hidden_size, parts.size)

    def split(self, h: F32) -> tuple[F32, F32]:
        rows, size = self.inputs(h), self.parts.size
        return rows[:, :size] * rows[:, 2 * size :], rows[:, size : 2 * size]

    def step(self, state: LayerState, inputs: F32) -> F32:
        return self.convolution.step(state.window, inputs)

    def finish(self, made: F32, aside: F32) -> F32:
        return self.output(aside * made)


EPS = np.float32(1e-6)  # of a query's and a key's length


class WeightedDeltaNet(RecurrentMixer):
    """Gated DeltaNet: linear attention that forgets, and corrects what it remembers.

    Where they are fused, `queries_keys_values` is `gate` too, and `beta` is `decay` too. `rate` is -exp(decay_log).
    """

    def __init__(self, weights: CheckedWeights, parts: GatedDeltaNet, index: int, hidden_size: int) -> None:
        self.index = index
        self.parts = parts
        heads, num_values, num_mixed = parts.num_value_heads, parts.num_values, 2 * parts.num_keys + parts.num_values
        if parts.fused:
            mixed = weights.projection(parts.queries_keys_values, num_mixed + num_values, hidden_size)
            self.queries_keys_values = self.gate = mixed
            self.beta = self.decay = weights.projection(parts.beta, 2 * heads, hidden_size)
        else:
            self.queries_keys_values = weights.projection(parts.queries_keys_values, num_mixed, hidden_size)
            self.gate = weights.projection(parts.gate, num_values, hidden_size)
            self.beta = weights.projection(parts.beta, heads, hidden_size)
            self.decay = weights.projection(parts.decay, heads, hidden_size)
        self.convolution = WeightedConvolution(weights, parts.convolution, num_mixed)
        self.decay_bias = weights.vector(parts.decay_bias, heads)
        self.rate: F32 = -np.exp(weights.vector(parts.decay_log, heads))
        self.norm = weights.norm(parts.norm, parts.value_dim)
        self.output = weights.projection(parts.output, hidden_size, num_values)

    def split(self, h: F32) -> tuple[F32, F32]:
        if not self.parts.fused:
            given = [self.queries_keys_values(h), self.beta(h), self.decay(h)]
            return np.concatenate(given, axis=1), self.gate(h)
        parts, num_tokens = self.parts, len(h)
        heads, group = parts.num_key_heads, parts.num_value_heads // parts.num_key_heads
        cuts = np.cumsum([parts.key_dim, parts.key_dim, group * parts.value_dim])
        queries, keys, values, gate = np.split(
            self.queries_keys_values(h).reshape(num_tokens, heads, -1), cuts.tolist(), axis=2
        )
        beta, decay = np.split(self.beta(h).reshape(num_tokens, heads, 2 * group), 2, axis=2)
        given = [each.reshape(num_tokens, -1) for each in (queries, keys, values, beta, decay)]
        return np.concatenate(given, axis=1), gate.reshape(num_tokens, -1)

    def step(self, state: LayerState, inputs: F32) -> F32:
        """(num_value_heads, value_dim)."""
        parts, num_channels = self.parts, self.parts.state.num_channels
        beta, decay = inputs[num_channels:].reshape(2, parts.num_value_heads)
        mixed = silu(self.convolution.step(state.window, inputs[:num_channels])[None])[0]
        keyed = mixed[: 2 * parts.num_keys].reshape(2, parts.num_key_heads, parts.key_dim)
        lengths = np.sqrt(fold_in_place(keyed * keyed) + EPS)
        group = parts.num_value_heads // parts.num_key_heads
        queries, keys = (keyed / lengths[..., None]).repeat(group, axis=1)[..., None]  # (heads, key_dim, 1)
        values = mixed[2 * parts.num_keys :].reshape(-1, parts.value_dim)
        memory = state.memory
        memory *= np.exp(self.rate * softplus(decay + self.decay_bias))[:, None, None]
        missed = (values - fold_in_place(memory * keys, axis=1)) * row_sigmoid(beta)[:, None]
        memory += keys * missed[:, None]
        queries = queries * np.float32(1 / math.sqrt(parts.key_dim))
        return fold_in_place(memory * queries, axis=1)

    def finish(self, made: F32, aside: F32) -> F32:
        return self.output(self.norm(made).reshape(len(made), -1) * silu(aside))


class WeightedMamba2(RecurrentMixer):
    """Mamba-2: a state space a head, whose decay is one number. `rate` is -exp(decay_log)."""

    def __init__(self, weights: CheckedWeights, parts: Mamba2, index: int, hidden_size: int) -> None:
        self.index = index
        self.parts = parts
        size, state, heads = parts.size, parts.state, parts.num_heads
        self.inputs = weights.projection(parts.inputs, size + state.input_size, hidden_size)
        self.convolution = WeightedConvolution(weights, parts.convolution, state.num_channels)
        self.step_bias = weights.vector(parts.step_bias, heads)
        self.rate: F32 = -np.exp(weights.vector(parts.decay_log, heads))
        self.skip = weights.vector(parts.skip, heads)
        self.norm = weights.norm(parts.norm, size)
        self.output = weights.projection(parts.output, hidden_size, size)

    def split(self, h: F32) -> tuple[F32, F32]:
        rows, size = self.inputs(h), self.parts.size
        return rows[:, size:], rows[:, :size]

    def step(self, state: LayerState, inputs: F32) -> F32:
        """(num_heads, head_dim)."""
        parts, num_channels = self.parts, self.parts.state.num_channels
        mixed = self.convolution.step(state.window, inputs[:num_channels])
        mixed = ACTIVATIONS[parts.activation](mixed[None])[0]
        x = mixed[: parts.size].reshape(parts.num_heads, parts.head_dim)
        grouped = mixed[parts.size :].reshape(2, parts.num_groups, parts.state_size)
        b, c = grouped.repeat(parts.num_heads // parts.num_groups, axis=1)[:, :, None]  # (heads, 1, state_size)
        least, most = parts.step_limits
        times = softplus(inputs[num_channels:] + self.step_bias).clip(np.float32(least), np.float32(most))
        memory = state.memory
        memory *= np.exp(times * self.rate)[:, None, None]
        memory += (times[:, None] * x)[:, :, None] * b
        read: F32 = fold_in_place(memory * c) + self.skip[:, None] * x
        return read

    def finish(self, made: F32, aside: F32) -> F32:
        gated = made.reshape(len(made), -1) * silu(aside)
        groups = gated.reshape(len(made), self.parts.norm_groups, -1)
        ones = np.ones(groups.shape[-1], np.float32)
        normed = rms_norm(groups, ones, self.norm.parts.eps).reshape(gated.shape)
        return self.output(normed * self.norm.weight)


def recurrent_mixer(weights: CheckedWeights, parts: Recurrent, index: int, hidden_size: int) -> RecurrentMixer:
    """The mixer of layer `index`, by its description."""
    if isinstance(parts, ShortConvolution):
        return WeightedShortConvolution(weights, parts, index, hidden_size)
    if isinstance(parts, GatedDeltaNet):
        return WeightedDeltaNet(weights, parts, index, hidden_size)
    return WeightedMamba2(weights, parts, index, hidden_size)
