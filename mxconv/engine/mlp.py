"""The MLP of a layer, or its experts, and the embeddings of the layers' own.

Where a row is sent is a function of the row alone. Rows that chose the same expert go through it together, and no
other weights are read.
"""

from collections.abc import Callable
from copy import copy

import numpy as np
from numpy.typing import NDArray

from mxconv.arch.config import ModelConfig
from mxconv.arch.description import LayerInput, LayerInputs
from mxconv.arch.elements import Experts, Mixture, Mlp, Routing
from mxconv.arrays import F32
from mxconv.codecs.fold import fold, fold_in_place
from mxconv.engine.activations import ACTIVATIONS
from mxconv.engine.weights import CheckedWeights, WeightedPart
from mxconv.errors import ModelError
from mxconv.kernels.matrix import Matrix
from mxconv.kernels.rowwise import sigmoid


class WeightedMlp(WeightedPart):
    """An MLP with its matrices; a fused one is both `gate` and `up`."""

    def __init__(self, weights: CheckedWeights, parts: Mlp, hidden_size: int) -> None:
        self.parts = parts
        inner = (2 if parts.fused else 1) * parts.size
        self.gate = weights.projection(parts.gate, inner, hidden_size) if parts.gate else None
        self.up = self.gate if parts.fused and self.gate else weights.projection(parts.up, inner, hidden_size)
        self.down = weights.projection(parts.down, hidden_size, parts.size)

    @property
    def num_weights(self) -> int:
        """How many a pass multiplies by, however few its rows."""
        return sum(matrix.shape[0] * matrix.shape[1] for matrix in self.matrices)

    @property
    def num_stored_weights(self) -> int:
        """How many there are."""
        return self.num_weights

    def __call__(self, x: F32) -> F32:
        """What it makes of rows, (num_tokens, hidden_size)."""
        activation = ACTIVATIONS[self.parts.activation]
        if self.parts.fused:
            both, size = self.up(x), self.parts.size
            return self.down(activation(both[:, :size].copy()) * both[:, size:])
        if self.gate is None:
            return self.down(activation(self.up(x)))
        return self.down(activation(self.gate(x)) * self.up(x))


class WeightedInput(WeightedPart):
    """What one layer does with its own embeddings of the tokens."""

    def __init__(self, weights: CheckedWeights, parts: LayerInput, hidden_size: int) -> None:
        self.parts = parts
        self.gate = weights.projection(parts.gate, parts.size, hidden_size)
        self.projection = weights.projection(parts.projection, hidden_size, parts.size)
        self.norm = weights.norm(parts.norm, hidden_size)

    def __call__(self, x: F32, own: F32) -> F32:
        """What is added to rows (num_tokens, hidden_size), given their embeddings (num_tokens, size)."""
        gated = ACTIVATIONS[self.parts.activation](self.gate(x)) * own
        return self.norm(self.projection(gated))


class WeightedInputs:
    """Where the embeddings of all layers' own come from."""

    def __init__(self, weights: CheckedWeights, config: ModelConfig, parts: LayerInputs) -> None:
        self.parts = parts
        self.num_layers = config.num_hidden_layers
        width = self.num_layers * parts.size
        self.table = weights.matrix(parts.table, config.vocab_size, width)
        self.projection = weights.projection(parts.projection, width, config.hidden_size)
        self.norm = weights.norm(parts.norm, parts.size)

    def __call__(self, ids: NDArray[np.intp], embedded: F32) -> F32:
        """(num_layers, num_tokens, size), given tokens and their embeddings (num_tokens, hidden_size)."""
        shape = len(ids), self.num_layers, self.parts.size
        looked_up = (self.table.rows(ids) * np.float32(self.parts.table_multiplier)).reshape(shape)
        projected = (self.projection(embedded) * np.float32(self.parts.projection_multiplier)).reshape(shape)
        summed = (self.norm(projected) + looked_up) * np.float32(self.parts.multiplier)
        return np.ascontiguousarray(summed.transpose(1, 0, 2))


Numbers = NDArray[np.intp]
LEAST_SUM = np.float32(1e-20)  # below which scores are not divided by their sum
BEST_OF_GROUP = 2  # experts whose scores say how good a group is


class Router(WeightedPart):
    """The router of a mixture with its matrix and vectors."""

    def __init__(self, weights: CheckedWeights, parts: Routing, hidden_size: int) -> None:
        self.parts = parts
        self.projection = weights.projection(parts.router, parts.num_experts, hidden_size)
        self.correction = weights.vector(parts.correction, parts.num_experts)
        self.multipliers = weights.vector(parts.multipliers, parts.num_experts)
        self.norm = weights.norm(parts.norm, hidden_size)
        self.input_weights = weights.vector(parts.input_weights, hidden_size)

    def __call__(self, x: F32, num_chosen: int) -> tuple[Numbers, F32]:
        """The experts that rows (num_tokens, hidden_size) are sent to, and what each counts.

        Returns:
            (num_tokens, num_chosen) each, the best first; at least one is chosen.
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


class ExpertMatrices:
    """Matrices of a layer's experts by number, whether a checkpoint stacks them or has a tensor for each.

    `both` gives gate and up in one, (2 * size, hidden_size); None where `gate` and `up` are apart.
    """

    both: Callable[[int], Matrix] | None = None
    gate: Callable[[int], Matrix]
    up: Callable[[int], Matrix]
    down: Callable[[int], Matrix]
    both_bias: Matrix | None = None
    down_bias: Matrix | None = None

    def __init__(self, weights: CheckedWeights, parts: Experts, count: int, hidden: int) -> None:
        self.parts = parts
        self.num_weights = 3 * parts.size * hidden  # of one expert
        first, second = parts.stacked
        if parts.apart is None or weights.has_stack(first):
            self.both = weights.stack(first, (count, 2 * parts.size, hidden)).matrix
            self.down = weights.stack(second, (count, hidden, parts.size)).matrix
            if parts.has_bias:
                self.both_bias = weights.matrix(f"{first}_bias", count, 2 * parts.size)
                self.down_bias = weights.matrix(f"{second}_bias", count, hidden)
            return
        shapes = (parts.size, hidden), (parts.size, hidden), (hidden, parts.size)
        self.gate, self.up, self.down = (
            [weights.matrix(f"{name.format(expert)}.weight", *shape) for expert in range(count)].__getitem__
            for name, shape in zip(parts.apart, shapes, strict=True)
        )

    def matrices(self, expert: int) -> list[Matrix]:
        """All that rows of an expert are multiplied by."""
        makers = (self.gate, self.up, self.down) if self.both is None else (self.both, self.down)
        return [make(expert) for make in makers]

    def __call__(self, expert: int, x: F32) -> F32:
        """What one expert makes of rows, (num_tokens, hidden_size)."""
        if self.both is None:
            gates, ups = self.gate(expert).multiply(x), self.up(expert).multiply(x)
        else:
            rows = _product(self.both(expert), self.both_bias, expert, x)
            first, second = slice(self.parts.size), slice(self.parts.size, None)
            if self.parts.is_interleaved:
                first, second = slice(0, None, 2), slice(1, None, 2)
            gates, ups = rows[:, first].copy(), rows[:, second].copy()
        if (clamped := self.parts.clamped) is None:
            bent = ACTIVATIONS[self.parts.activation](gates) * ups
        else:
            limit = np.float32(clamped.limit)
            gates, ups = np.minimum(gates, limit), np.clip(ups, -limit, limit)
            bent = (ups + np.float32(1)) * (gates * sigmoid(gates * np.float32(clamped.slope)))
        return _product(self.down(expert), self.down_bias, expert, bent)


def _product(matrix: Matrix, biases: Matrix | None, expert: int, x: F32) -> F32:
    y = matrix.multiply(x)
    return y if biases is None else y + biases.rows(np.array([expert]))[0]


class WeightedMixture(WeightedPart):
    """Router, experts and what is shared, with their weights.

    `num_chosen` is how many experts a row is sent to: in a draft fewer than the model was trained with, perhaps none.
    """

    def __init__(self, weights: CheckedWeights, parts: Mixture, hidden_size: int) -> None:
        self.parts = parts
        self.num_chosen = parts.routing.num_chosen
        self.router = Router(weights, parts.routing, hidden_size)
        self.experts = ExpertMatrices(weights, parts.experts, parts.routing.num_experts, hidden_size)
        self.shared = WeightedMlp(weights, parts.shared, hidden_size) if parts.shared else None
        self.shared_gate = weights.projection(parts.shared_gate, 1, hidden_size) if parts.shared_gate else None
        self.before_experts = weights.norm(parts.before_experts, hidden_size)
        self.after_experts = weights.norm(parts.after_experts, hidden_size)
        self.before_shared = weights.norm(parts.before_shared, hidden_size)
        self.after_shared = weights.norm(parts.after_shared, hidden_size)

    def with_fewer(self, num_chosen: int) -> "WeightedMixture":
        """The same weights, each row sent to `num_chosen` experts at most, whose shares are computed anew."""
        made = copy(self)
        made.num_chosen = min(num_chosen, self.num_chosen)
        return made

    @property
    def num_weights(self) -> int:
        """How many a pass over one row multiplies by."""
        rows, columns = self.router.projection.matrix.shape
        shared = 0 if self.shared is None else self.shared.num_weights
        return rows * columns + shared + self.num_chosen * self.experts.num_weights

    @property
    def num_stored_weights(self) -> int:
        """How many there are, those of all experts."""
        return self.num_weights + (self.parts.routing.num_experts - self.num_chosen) * self.experts.num_weights

    def __call__(self, x: F32) -> F32:
        """What it makes of rows, (num_tokens, hidden_size)."""
        made = self._routed(x)
        if self.after_experts is not None:
            made = self.after_experts(made)
        if self.shared is None:
            return made
        shared = self.shared(x if self.before_shared is None else self.before_shared(x))
        if self.after_shared is not None:
            shared = self.after_shared(shared)
        return made + (shared if self.shared_gate is None else sigmoid(self.shared_gate(x)) * shared)

    def _routed(self, x: F32) -> F32:
        """The sum of a row's experts, in ascending order of their numbers, whatever other rows chose."""
        total = np.zeros_like(x)
        if self.num_chosen == 0:
            return total
        chosen, shares = self.router(x, self.num_chosen)
        taken = x if self.before_experts is None else self.before_experts(x)
        for expert in np.unique(chosen):
            rows, ranks = np.nonzero(chosen == expert)
            share = shares[rows, ranks][:, None]
            if self.parts.scales_input:
                total[rows] += self.experts(int(expert), taken[rows] * share)
            else:
                total[rows] += self.experts(int(expert), taken[rows]) * share
        return total


def check_fewer(config: ModelConfig, num_experts: int, name: str) -> None:
    """Raises ModelError for a draft with so many experts a token if no layer of the model sends rows to more."""
    chosen = [layer.mlp.routing.num_chosen for layer in config.layers if isinstance(layer.mlp, Mixture)]
    if not chosen:
        raise ModelError(
            f"{name}: {num_experts} experts of {config.model_type}, whose layers have none; a mixture of experts is "
            "required. Use another kind of draft."
        )
    if num_experts >= max(chosen):
        raise ModelError(
            f"{name}: {num_experts} experts of each layer; 0 to {max(chosen) - 1}, fewer than the {max(chosen)} that "
            "the model was trained with, are required."
        )
