"""The elements of parts of all kinds, as data: norms, matrices and MLPs by the names of their tensors."""

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
