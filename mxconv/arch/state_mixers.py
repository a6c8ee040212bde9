"""Mixers that read the past through a state of constant size, as data.

Each begins with a causal convolution over the last few rows, channel by channel; after it some have a memory, a matrix
a head. What a row adds to the state is its *input*: what goes into the convolution, and the gates beside it.
"""

from dataclasses import dataclass

from mxconv.arch.elements import Activation, Linear, Norm


@dataclass(frozen=True)
class StateSizes:
    """The sizes of a layer's state, in float32 numbers."""

    kernel_size: int  # rows that the convolution sees, its own included
    num_channels: int  # of the convolution
    num_gates: int = 0  # of a row's input, beside the channels
    memory: tuple[int, int, int] = (0, 0, 0)  # (heads, rows, columns); (0, 0, 0) is none

    @property
    def input_size(self) -> int:
        """Numbers of a row's input."""
        return self.num_channels + self.num_gates


@dataclass(frozen=True)
class Convolution:
    """A causal convolution a channel, `<name>.weight` (channels, 1, kernel_size) and perhaps `<name>.bias`."""

    name: str
    kernel_size: int
    has_bias: bool = False


@dataclass(frozen=True)
class ShortConvolution:
    """A convolution between two gates: of a row B, C, x the output is C * convolution(B * x).

    Source:
        LFM2 of Liquid AI, as transformers' lfm2 computes it.
    """

    size: int  # of each of the three
    convolution: Convolution
    inputs: Linear  # (3 * size, hidden_size): B, C and x, one after the other
    output: Linear  # (hidden_size, size)

    @property
    def state(self) -> StateSizes:
        return StateSizes(self.convolution.kernel_size, self.size)


@dataclass(frozen=True)
class GatedDeltaNet:
    """Linear attention whose memory forgets by a gate and is corrected by what it misses (the delta rule).

    Of each value head, S its memory (key_dim, value_dim): S <- exp(g) * S; S <- S + k (beta * (v - S'k)); o = S'q. Key
    head h serves value heads h * group .. (h + 1) * group - 1. Queries, keys and values have gone through the
    convolution and SiLU; queries and keys are divided by their length.

    Source:
        Gated Delta Networks, arXiv 2412.06464, equation 10.
    """

    num_key_heads: int
    num_value_heads: int
    key_dim: int  # of a key head, as is `value_dim` of a value head
    value_dim: int
    convolution: Convolution
    queries_keys_values: Linear  # (2 * keys + values, hidden_size), one after the other
    gate: Linear  # (values, hidden_size), of what is given
    beta: Linear  # (num_value_heads, hidden_size), as is `decay`
    decay: Linear
    decay_bias: str  # a tensor (num_value_heads,), as is `decay_log`
    decay_log: str  # g = -exp(decay_log) * softplus(decay + decay_bias)
    norm: Norm  # of each value head, before the gate
    output: Linear  # (hidden_size, values)
    # two tensors hold the four, key head by key head: `queries_keys_values` and `gate` name one, `beta` and `decay` the
    # other
    fused: bool = False

    @property
    def num_keys(self) -> int:
        """Numbers of all key heads."""
        return self.num_key_heads * self.key_dim

    @property
    def num_values(self) -> int:
        return self.num_value_heads * self.value_dim

    @property
    def state(self) -> StateSizes:
        return StateSizes(
            self.convolution.kernel_size,
            2 * self.num_keys + self.num_values,
            2 * self.num_value_heads,
            (self.num_value_heads, self.key_dim, self.value_dim),
        )


@dataclass(frozen=True)
class Mamba2:
    """A state space whose memory decays by a number a head.

    Of each head, S its memory (head_dim, state_size): S <- exp(dt * A) * S + (dt * x) B'; y = S C + D * x. Group g of B
    and C serves heads g * heads / groups and on. x, B and C have gone through the convolution and its activation.

    Source:
        Transformers are SSMs, arXiv 2405.21060, sections 3 and 7.
    """

    num_heads: int
    head_dim: int
    state_size: int
    num_groups: int
    convolution: Convolution
    activation: Activation
    inputs: Linear  # (gate + channels + heads, hidden_size): the gate of what is given, x with B and C, and dt
    step_bias: str  # step_bias, decay_log, skip: the tensors (num_heads,) of dt's bias, of A = -exp(decay_log), and D
    step_limits: tuple[float, float]  # dt = softplus(dt + step_bias) is kept between them
    decay_log: str
    skip: str
    norm: Norm  # after the gate, each of `norm_groups` equal parts by itself
    norm_groups: int
    output: Linear  # (hidden_size, num_heads * head_dim)

    @property
    def size(self) -> int:
        """Numbers of all heads."""
        return self.num_heads * self.head_dim

    @property
    def state(self) -> StateSizes:
        return StateSizes(
            self.convolution.kernel_size,
            self.size + 2 * self.num_groups * self.state_size,
            self.num_heads,
            (self.num_heads, self.head_dim, self.state_size),
        )


Recurrent = ShortConvolution | GatedDeltaNet | Mamba2
