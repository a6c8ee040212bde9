"""What layers are made of, as data: norms, matrices and MLPs, mixtures of experts, and mixers with a state.

In the place of an MLP, a mixture has a few MLPs out of many for each row. Mixers with a state read the past through a
state of constant size. Each begins with a causal convolution over the last few rows, channel by channel; after it some
have a memory, a matrix a head. What a row adds to the state is its *input*: what goes into the convolution, and the
gates beside it.
"""

from dataclasses import dataclass
from typing import Literal

Activation = Literal["silu", "gelu", "gelu_tanh", "relu2"]


@dataclass(frozen=True)
class Norm:
    """A norm over the last axis, with the tensors `<name>.weight` and `<name>.bias`."""

    name: str  # of the module
    eps: float  # added to the mean square, or to the variance
    kind: Literal["rms", "layer"] = "rms"  # whether the mean is taken away first ("layer"), or not ("rms")
    offset: float = 0.0  # added to every weight: 1 where weights are stored as what they differ from one by
    has_weight: bool = True  # False multiplies by nothing
    has_bias: bool = False


@dataclass(frozen=True)
class Linear:
    """A matrix (out_features, in_features), `<name>.weight`, and a bias, `<name>.bias`."""

    name: str
    has_bias: bool = False
    is_transposed: bool = False  # whether it is stored as (in_features, out_features)


@dataclass(frozen=True)
class Mlp:
    """Two matrices with an activation between them; a gate is a third, whose activation multiplies what `up` gives."""

    size: int
    activation: Activation
    up: Linear
    down: Linear
    gate: Linear | None = None  # None for none
    fused: bool = False  # whether one tensor, which `gate` and `up` both name, holds the gate's rows, then the others


@dataclass(frozen=True)
class ClampedGate:
    """Gates g and ups u become (u + 1) * g * sigmoid(slope * g), g at most `limit` and u within it.

    Source:
        The gpt-oss release of OpenAI.
    """

    slope: float
    limit: float


@dataclass(frozen=True)
class Routing:
    """Which experts a row is sent to, and how much each counts.

    A row's logits are a product with the router's matrix. Scores are the softmax of all logits, that of the chosen
    experts' logits alone, or sigmoids one by one. The greatest scores are chosen; of equal ones, the lower number.
    """

    num_experts: int  # that there are
    num_chosen: int  # that a row is sent to
    router: Linear  # (num_experts, hidden_size)
    score: Literal["softmax", "softmax_of_chosen", "sigmoid"] = "softmax"  # what is made of the logits
    is_normalized: bool = False  # whether the chosen scores are divided by their sum
    correction: str | None = None  # a tensor (num_experts,) that is added to scores for the choice alone; None is none
    num_groups: int = 1  # equal runs of experts; the best groups are chosen first, by the sum of their two best scores
    num_chosen_groups: int = 1  # whose experts may be chosen
    multiplier: float = 1.0  # of the scores at last
    multipliers: str | None = None  # a tensor (num_experts,) that multiplies each expert's score; None is none
    norm: Norm | None = None  # of what the router takes in; None is none
    input_weights: str | None = None  # a tensor (hidden_size,) by which that is multiplied, and `input_multiplier`
    input_multiplier: float = 1.0


@dataclass(frozen=True)
class Experts:
    """MLPs with gates, all of one size.

    A checkpoint has a tensor for each matrix of each expert, or two tensors of three dimensions for all. The names of
    both are given, and whichever is there is read.
    """

    size: int  # of one
    activation: Activation  # of the gates
    apart: tuple[str, str, str] | None  # names of gate, up and down of one expert, with `{}` for its number
    stacked: tuple[str, str]  # names of gate and up in one, and of down
    is_interleaved: bool = False  # whether rows of gate and up take turns there; otherwise all gates come first
    has_bias: bool = False  # whether stacks have biases, (num_experts, out_features) under the stack's name and `_bias`
    clamped: ClampedGate | None = None  # instead of the activation of gates, times ups


@dataclass(frozen=True)
class Mixture:
    """Experts in the place of a layer's MLP."""

    routing: Routing
    experts: Experts
    shared: Mlp | None = None  # an MLP that every row goes through too; None is none
    shared_gate: Linear | None = None  # (1, hidden_size), whose sigmoid multiplies what that gives
    scales_input: bool = False  # whether scores multiply what experts take in, or what they give
    # a norm of what experts take in, as `after_experts` is of their sum, and the two others are of what goes into the
    # shared MLP and of what comes out of it. None is none
    before_experts: Norm | None = None
    after_experts: Norm | None = None
    before_shared: Norm | None = None
    after_shared: Norm | None = None

    @property
    def size(self) -> int:
        """The size of one expert."""
        return self.experts.size


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
