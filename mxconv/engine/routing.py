"""Where each row is sent: the scores of experts and the choice among them, a function of the row alone."""

import numpy as np
from numpy.typing import NDArray

from mxconv.arch.mixture import Routing
from mxconv.arrays import F32
from mxconv.codecs.fold import fold, fold_in_place
from mxconv.engine.weights import CheckedWeights
from mxconv.kernels.rowwise import sigmoid

Numbers = NDArray[np.intp]
LEAST_SUM = np.float32(1e-20)  # below which scores are not divided by their sum
BEST_OF_GROUP = 2  # experts whose scores say how good a group is


class Router:
    """The router of a mixture with its matrix and vectors."""

    def __init__(self, weights: CheckedWeights, parts: Routing, hidden_size: int) -> None:
        self.parts = parts
        self.projection = weights.projection(parts.router, parts.num_experts, hidden_size)
        self.correction = weights.vector(parts.correction, parts.num_experts)
        self.multipliers = weights.vector(parts.multipliers, parts.num_experts)
        self.norm = weights.norm(parts.norm, hidden_size)
        self.input_weights = weights.vector(parts.input_weights, hidden_size)

    def __call__(self, x: F32, num_chosen: int) -> tuple[Numbers, F32]:
        """The experts that rows (num_tokens, hidden_size) are sent to.

        Args:
            num_chosen: of each row, at least one.

        Returns:
            Their numbers, (num_tokens, num_chosen), the best first, and what each counts, float32.
        """
        parts = self.parts
        if self.norm is not None:
            x = self.norm(x)
        if self.input_weights is not None:
            x = x * self.input_weights * np.float32(parts.input_multiplier)
        logits = self.projection(x)
        chosen = self._best(logits, num_chosen)
        if parts.score == "softmax_of_chosen":
            shares = _softmax(np.take_along_axis(logits, chosen, axis=1))
        else:
            scores = _softmax(logits) if parts.score == "softmax" else sigmoid(logits)
            shares = np.take_along_axis(scores, chosen, axis=1)
        if parts.is_normalized:
            shares = shares / (fold(shares)[:, None] + LEAST_SUM)
        if parts.multiplier != 1:
            shares = shares * np.float32(parts.multiplier)
        return chosen, shares if self.multipliers is None else shares * self.multipliers[chosen]

    def _best(self, logits: F32, num_chosen: int) -> Numbers:
        """The best experts of each row; scores grow with logits, so these decide where no correction is added."""
        if self.correction is None:
            return _greatest(logits, num_chosen)
        scores = sigmoid(logits) + self.correction
        if self.parts.num_groups > 1:
            grouped = scores.reshape(len(scores), self.parts.num_groups, -1)
            best = np.sort(grouped, axis=-1)[:, :, -BEST_OF_GROUP:]
            groups = _greatest(fold_in_place(best.copy()), self.parts.num_chosen_groups)
            is_open = np.zeros(grouped.shape[:2], np.bool_)
            np.put_along_axis(is_open, groups, True, axis=1)
            scores = np.where(is_open[:, :, None], grouped, np.float32(-np.inf)).reshape(scores.shape)
        return _greatest(scores, num_chosen)


def _greatest(values: F32, count: int) -> Numbers:
    """Indices of the greatest of each row, the greatest first; of equal ones the first."""
    return np.argsort(-values, axis=1, kind="stable")[:, :count]


def _softmax(logits: F32) -> F32:
    shifted = logits - logits.max(axis=1, keepdims=True)
    for row in shifted:  # one at a time: a vectorized exp may treat the ends of an array differently
        np.exp(row, out=row)
    shares: F32 = shifted / fold(shifted)[:, None]
    return shares
