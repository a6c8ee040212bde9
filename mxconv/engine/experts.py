"""A layer's experts: rows that chose the same one go through it together, and no other weights are read."""

from dataclasses import dataclass, replace

import numpy as np

from mxconv.arch.elements import Norm
from mxconv.arch.mixture import Mixture
from mxconv.arrays import F32
from mxconv.engine.activations import ACTIVATIONS
from mxconv.engine.expert_matrices import ExpertMatrices
from mxconv.engine.mlp import WeightedMlp
from mxconv.engine.norm import WeightedNorm
from mxconv.engine.projection import Projection
from mxconv.engine.routing import Router
from mxconv.engine.weights import CheckedWeights
from mxconv.kernels.rowwise import sigmoid


@dataclass(frozen=True, eq=False)
class WeightedMixture:
    """Router, experts and what is shared, with their weights.

    Args:
        num_chosen: experts that a row is sent to: fewer than the model was trained with in a draft, perhaps none.
    """

    parts: Mixture
    router: Router
    experts: ExpertMatrices
    shared: WeightedMlp | None
    shared_gate: Projection | None
    before_experts: WeightedNorm | None
    after_experts: WeightedNorm | None
    before_shared: WeightedNorm | None
    after_shared: WeightedNorm | None
    num_chosen: int

    @classmethod
    def take(cls, weights: CheckedWeights, parts: Mixture, hidden_size: int, prefix: str) -> "WeightedMixture":
        """Raises ModelError where a tensor is missing or has another shape."""

        def norm(wanted: Norm | None) -> WeightedNorm | None:
            return None if wanted is None else WeightedNorm.take(weights, wanted, hidden_size, prefix)

        gate, shared = parts.shared_gate, parts.shared
        return cls(
            parts=parts,
            router=Router.take(weights, parts.routing, hidden_size, prefix),
            experts=ExpertMatrices.take(weights, parts.experts, (parts.routing.num_experts, hidden_size), prefix),
            shared=None if shared is None else WeightedMlp.take(weights, shared, hidden_size, prefix),
            shared_gate=None if gate is None else Projection.take(weights, gate, (1, hidden_size), prefix),
            before_experts=norm(parts.before_experts),
            after_experts=norm(parts.after_experts),
            before_shared=norm(parts.before_shared),
            after_shared=norm(parts.after_shared),
            num_chosen=parts.routing.num_chosen,
        )

    def with_fewer(self, num_chosen: int) -> "WeightedMixture":
        """The same weights, each row sent to `num_chosen` experts at most, of which their shares are made anew."""
        return replace(self, num_chosen=min(num_chosen, self.num_chosen))

    @property
    def num_weights(self) -> int:
        """That a pass over one row multiplies by."""
        rows, columns = self.router.projection.matrix.shape
        shared = 0 if self.shared is None else self.shared.num_weights
        return rows * columns + shared + self.num_chosen * self.experts.num_weights

    @property
    def num_stored_weights(self) -> int:
        """Those of all experts."""
        return self.num_weights + (self.parts.routing.num_experts - self.num_chosen) * self.experts.num_weights

    def __call__(self, x: F32) -> F32:
        """What it makes of rows, (num_tokens, hidden_size)."""
        routed = self._routed(x)
        if self.after_experts is not None:
            routed = self.after_experts(routed)
        return routed if self.shared is None else routed + self._shared(self.shared, x)

    def _routed(self, x: F32) -> F32:
        """The sum of a row's experts, in ascending order of their numbers: of no other row's choice."""
        total = np.zeros_like(x)
        if self.num_chosen == 0:
            return total
        chosen, shares = self.router(x, self.num_chosen)
        taken = x if self.before_experts is None else self.before_experts(x)
        for expert in np.unique(chosen):
            rows, ranks = np.nonzero(chosen == expert)
            share = shares[rows, ranks][:, None]
            if self.parts.scales_input:
                total[rows] += self._one(int(expert), taken[rows] * share)
            else:
                total[rows] += self._one(int(expert), taken[rows]) * share
        return total

    def _one(self, expert: int, x: F32) -> F32:
        """What one expert makes of rows."""
        gates, ups = self.experts.gates_and_ups(expert, x)
        clamped = self.parts.experts.clamped
        if clamped is None:
            return self.experts.down(expert, ACTIVATIONS[self.parts.experts.activation](gates) * ups)
        limit = np.float32(clamped.limit)
        gates, ups = np.minimum(gates, limit), np.clip(ups, -limit, limit)
        bent = gates * sigmoid(gates * np.float32(clamped.slope))
        return self.experts.down(expert, (ups + np.float32(1)) * bent)

    def _shared(self, shared: WeightedMlp, x: F32) -> F32:
        taken = x if self.before_shared is None else self.before_shared(x)
        made = shared(taken)
        if self.after_shared is not None:
            made = self.after_shared(made)
        return made if self.shared_gate is None else sigmoid(self.shared_gate(x)) * made
