"""Mixtures of experts as data: in the place of an MLP, a few MLPs out of many for each row."""

from dataclasses import dataclass
from typing import Literal

from mxconv.arch.elements import Activation, Linear, Mlp, Norm


@dataclass(frozen=True)
class Routing:
    """Which experts a row is sent to, and how much each counts.

    A row's logits are a product with the router's matrix. Scores are the softmax of all logits, that of the chosen
    experts' logits alone, or sigmoids one by one. The greatest scores are chosen; of equal ones, the lower number.

    Args:
        num_experts: that there are.
        num_chosen: that a row is sent to.
        router: (num_experts, hidden_size).
        score: what is made of the logits.
        is_normalized: whether the chosen scores are divided by their sum.
        correction: a tensor (num_experts,) that is added to scores for the choice alone; None is none.
        num_groups: equal runs of experts; the best groups are chosen first, by the sum of their two best scores.
        num_chosen_groups: whose experts may be chosen.
        multiplier: of the scores at last.
        multipliers: a tensor (num_experts,) that multiplies each expert's score; None is none.
        norm: of what the router takes in; None is none.
        input_weights: a tensor (hidden_size,) by which that is multiplied, and `input_multiplier`.
    """

    num_experts: int
    num_chosen: int
    router: Linear
    score: Literal["softmax", "softmax_of_chosen", "sigmoid"] = "softmax"
    is_normalized: bool = False
    correction: str | None = None
    num_groups: int = 1
    num_chosen_groups: int = 1
    multiplier: float = 1.0
    multipliers: str | None = None
    norm: Norm | None = None
    input_weights: str | None = None
    input_multiplier: float = 1.0


@dataclass(frozen=True)
class ClampedGate:
    """Gates g and ups u become (u + 1) * g * sigmoid(slope * g), g at most `limit` and u within it.

    Source:
        The gpt-oss release of OpenAI.
    """

    slope: float
    limit: float


@dataclass(frozen=True)
class Experts:
    """MLPs with gates, all of one size.

    A checkpoint has a tensor for each matrix of each expert, or two tensors of three dimensions for all. The names of
    both are given, and whichever is there is read.

    Args:
        size: of one.
        activation: of the gates.
        apart: names of gate, up and down of one expert, with `{}` for its number.
        stacked: names of gate and up in one, and of down.
        is_interleaved: whether in the first of these rows of gate and up take turns; otherwise all gates come first.
        has_bias: whether stacks have biases, (num_experts, out_features) under the stack's name and `_bias`.
        clamped: what is made of gates and ups instead of an activation of the one times the other.
    """

    size: int
    activation: Activation
    apart: tuple[str, str, str] | None
    stacked: tuple[str, str]
    is_interleaved: bool = False
    has_bias: bool = False
    clamped: ClampedGate | None = None


@dataclass(frozen=True)
class Mixture:
    """Experts in the place of a layer's MLP.

    Args:
        shared: an MLP that every row goes through too; None is none.
        shared_gate: (1, hidden_size), whose sigmoid multiplies what that gives.
        scales_input: whether scores multiply what experts take in, or what they give.
        before_experts: a norm of what experts take in, as `after_experts` is of their sum, and the two others are of
            what goes into the shared MLP and of what comes out of it. None is none.
    """

    routing: Routing
    experts: Experts
    shared: Mlp | None = None
    shared_gate: Linear | None = None
    scales_input: bool = False
    before_experts: Norm | None = None
    after_experts: Norm | None = None
    before_shared: Norm | None = None
    after_shared: Norm | None = None

    @property
    def size(self) -> int:
        """The size of one expert."""
        return self.experts.size
