"""Mixtures of experts as data: in the place of an MLP, a few MLPs out of many for each row."""

from dataclasses import dataclass
from typing import Literal

from mxconv.arch.elements import Activation, ClampedGate, Linear, Mlp, Norm


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
